// The texts of the page and of the canvas in the reader's language. The English text is the key of its translation.

const TRANSLATED = { ja: "ja", zh: "zh-CN" }; // languages with a file beside this one, and their names in HTML
const LABELS = ["title", "aria-label", "placeholder"];
const TEXT = 3; // nodeType of a text
const LONGEST_MS = 5000; // that a page waits for its texts
let translations = {}, name = "en";

/** Loads the texts of a language such as "ja" or "zh-CN". Another language, and one whose file does not come, is
 * English. Returns the name of the language for HTML. */
export async function speak(wanted) {
  const language = Object.keys(TRANSLATED).find((each) => wanted === each || wanted === TRANSLATED[each]);
  const loaded = language && await textsOf(language).catch(() => null);
  translations = loaded || {};
  name = loaded ? TRANSLATED[language] : "en";
  return name;
}

async function textsOf(language) {
  const address = new URL(`words.${language}.json`, import.meta.url);
  const file = await fetch(address, { signal: AbortSignal.timeout(LONGEST_MS) });
  return file.ok ? file.json() : null;
}

/** A text in the reader's language, with values in place of its {names}. A text without a translation stays English.
 * @param {string} text @param {Record<string, unknown>} [values] */
export function words(text, values = {}) {
  return (translations[text] ?? text).replace(/\{(\w+)\}/g, (hole, value) => values[value] ?? hole);
}

/** The text of an element as a key: elements in it are {0}, {1}, ... @param {Node[]} nodes  of the element */
export function keyOf(nodes) {
  let elements = 0;
  const parts = nodes.map(({ nodeType, data }) => (nodeType === TEXT ? data : `{${elements++}}`));
  return parts.join("").replace(/\s+/g, " ").trim();
}

/** Translates the texts and the labels of an element and of all elements in it; returns it.
 * @template {HTMLElement} Root @param {Root} root @returns {Root} */
export function translate(root) {
  if (name === "en") return root;
  for (const element of [root, ...root.querySelectorAll("*")]) {
    const labels = LABELS.filter((label) => element.hasAttribute(label));
    for (const label of labels) element.setAttribute(label, words(element.getAttribute(label)));
    const parts = translations[keyOf([...element.childNodes])]?.split(/\{(\d+)\}/), inner = [...element.children];
    if (parts) element.replaceChildren(...parts.map((part, index) => (index % 2 ? inner[part] : part)));
  }
  root.lang = name;
  return root;
}
