// Files are saved beside a page that stays: a link that the server answers with an error would take its place.

import { words } from "./words.mjs";

const REVOKED_MS = 60000; // a browser may begin to read later
const LONGEST_REASON = 300;

/** Saves what an address answers. Throws an Error that says why it cannot be. */
export async function save(address) {
  const response = await fetch(address).catch(() => { throw new Error(words("the server cannot be reached")); });
  const { status } = response;
  if (!response.ok) throw new Error((await reasonOf(response)) || words("the server answers {status}", { status }));
  const blob = await response.blob().catch(() => { throw new Error(words("the connection is lost")); });
  download(named(response) ?? "walk", blob);
}

/** Has the browser save data under a name. @param {string} name @param {Blob} blob */
export function download(name, blob) {
  const href = URL.createObjectURL(blob);
  Object.assign(document.createElement("a"), { download: name, href }).click();
  setTimeout(() => URL.revokeObjectURL(href), REVOKED_MS);
}

const reasonOf = async (response) => (await response.text().catch(() => "")).trim().slice(0, LONGEST_REASON);
const named = (response) => response.headers.get("Content-Disposition")?.match(/filename="([^"]+)"/)?.[1];
