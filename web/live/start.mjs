// The page of `lingbot-world live`: a picture is chosen, and walked in.

import { Begin } from "./begin.mjs";
import { MSGPACK } from "./connection.mjs";
import { playsH264 } from "./player.mjs";
import { View } from "./view.mjs";

const ENDPOINT = "v1/realtime_video/generate";
const LOCAL = ["127.0.0.1", "localhost", "[::1]"].includes(location.hostname);
const query = (name) => new URLSearchParams(location.search).get(name);

const view = new View({
  root: document,
  started: offerFiles,
  left: (reason) => { begin.say(reason); begin.root.hidden = false; },
  commands: {
    restart: () => view.connection?.send("restart", { prompt: view.bar.prompt.value, first_frame: begin.image ?? undefined }),
    picture: () => { view.show("begin"); begin.root.hidden = false; view.connection?.send("pause"); },
    measures: () => download("live.json", JSON.stringify(view.measures, null, 1)),
  },
});
const begin = new Begin(document.querySelector(".begin"), walk);

async function walk({ image, prompt }) {
  const format = query("format") ?? (LOCAL || !(await playsH264()) ? "jpeg" : "h264");
  const output = { realtime_output_format: format, output_compression: format === "jpeg" ? 88 : 80 };
  view.bar.prompt.value = prompt;
  begin.root.hidden = true;
  const address = new URL(ENDPOINT + location.search, location.href);
  view.walk({ prompt, first_frame: image, ...output, fps: Number(query("fps")) || undefined }, address, MSGPACK);
}

/** The files of a walk. */
function offerFiles({ resume }) {
  const token = query("token");
  for (const link of document.querySelectorAll("[data-save]")) {
    link.href = `walk/${link.dataset.save}?walk=${encodeURIComponent(resume)}${token ? `&token=${encodeURIComponent(token)}` : ""}`;
  }
}

function download(name, text) {
  const link = Object.assign(document.createElement("a"), { download: name, href: URL.createObjectURL(new Blob([text])) });
  link.click();
  URL.revokeObjectURL(link.href);
}
