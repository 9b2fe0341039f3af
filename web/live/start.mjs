// The page of `lingbot-world live`: a picture is chosen, and walked in.

import { Begin } from "./begin.mjs";
import { MSGPACK } from "./connection.mjs";
import { isTyping } from "./input.mjs";
import { playsH264 } from "./player.mjs";
import { offerWalks } from "./replay.mjs";
import { save } from "./save.mjs";
import { LONG, View } from "./view.mjs";
import { speak, translate, words } from "./words.mjs";

const WALKS = ["KeyW", "KeyA", "KeyS", "KeyD"]; // who holds one of these walks in
const ENDPOINT = "v1/realtime_video/generate";
const LOCAL = ["127.0.0.1", "localhost", "[::1]"].includes(location.hostname);
const query = (name) => new URLSearchParams(location.search).get(name);
const WALKED = document.querySelector(".walks");
let replays = false; // the server can make a walk again
let image = null; // that is walked in; another may be chosen meanwhile

await speak(document.documentElement.lang);
translate(document.documentElement);
document.documentElement.removeAttribute("data-untranslated");

const view = new View({
  root: document,
  started: (message) => {
    offerFiles(message);
    if (!begin.root.hidden) view.connection.send("pause"); // it has begun, or goes on, behind the pictures
  },
  left: (reason) => { begin.say(reason); choose(false); if (replays) offerWalks(WALKED, replay); },
  commands: {
    restart: () => view.restart({ prompt: view.bar.prompt.value, first_frame: image ?? undefined }),
    picture: () => { view.show("begin"); begin.say(""); choose(true); view.connection?.send("pause"); },
    return: goBack,
  },
});
const begin = new Begin(document.querySelector(".begin"), walk, (address) => view.picture.show(address));

choose(false);
fetch(`server_info${location.search}`).then((answer) => answer.json()).then(async ({ width, height, walks }) => {
  if (width && !view.facts) view.stage.style.setProperty("--aspect", width / height);
  replays = walks === true;
  const wanted = replays && await offerWalks(WALKED, replay);
  if (wanted && !view.connection) replay(wanted.name, wanted.prompt);
  const name = query("replay");
  if (replays && name && !wanted) begin.say(words("{name} is not among the walks that are kept here.", { name }));
}).catch(() => {}); // then as pictures mostly are

document.addEventListener("keydown", (event) => {
  const back = event.code === "Escape" || (event.code === "KeyO" && !isTyping(event.target));
  const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.repeat && !event.isComposing;
  if (back && plain && !event.defaultPrevented) goBack();
  if (WALKS.includes(event.code) && plain && !isTyping(event.target)) walkIn();
});
view.stage.addEventListener("pointerdown", walkIn);
for (const link of document.querySelectorAll("[data-save]")) link.addEventListener("click", saved);

async function walk(start) {
  const { prompt } = start, format = query("format") ?? (LOCAL || !(await playsH264()) ? "jpeg" : "h264");
  const output = { realtime_output_format: format, output_compression: format === "jpeg" ? 88 : 80 };
  image = start.image;
  view.bar.prompt.value = prompt;
  begin.root.hidden = true;
  const address = new URL(ENDPOINT + location.search, location.href);
  const own = { first_frame: image, fps: Number(query("fps")) || undefined };
  view.walk({ prompt, ...output, ...(start.name ? { lingbot_replay: start.name } : own) }, address, MSGPACK);
}

/** Has the server make a walk again. */
async function replay(name, prompt) {
  await walk({ image: null, prompt, name });
  view.stage.querySelector(".hold").hidden = true;
  view.say(words("{name} is replayed ...", { name }));
}

/** Shows the pictures. @param {boolean} walks  there is a walk to go back to */
function choose(walks) {
  begin.root.hidden = false;
  view.stage.querySelector(".hold").hidden = walks;
  if (!walks) begin.show();
  begin.root.querySelector("[data-command=return]").hidden = !walks;
}

/** Into the picture; a walk that waits goes on. */
function walkIn() {
  if (view.connection) goBack(); else begin.go();
}

/** From the pictures to the walk that waits, if one does. */
function goBack() {
  if (begin.root.hidden || !view.connection) return;
  begin.root.hidden = true;
  view.picture.show("");
  view.show("walk");
  view.canvas.focus();
}

/** The files of a walk. */
function offerFiles({ resume }) {
  const token = query("token");
  for (const link of document.querySelectorAll("[data-save]")) {
    link.href = `walk/${link.dataset.save}?${new URLSearchParams({ walk: resume, ...(token && { token }) })}`;
  }
}

async function saved(event) {
  const link = event.currentTarget;
  event.preventDefault();
  if (!link.href) { view.say(words("There is nothing to save yet."), LONG); return; }
  if (link.ariaBusy === "true") return;
  link.ariaBusy = "true";
  try {
    await save(link.href);
  } catch (error) {
    view.say(words("This cannot be saved: {message}", error), LONG);
  } finally {
    link.ariaBusy = "false";
  }
}
