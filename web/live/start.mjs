// The page: what is on it, and what its buttons do.

import { Begin } from "./begin.mjs";
import { Connection } from "./connection.mjs";
import { Input, isTyping } from "./input.mjs";
import { playsH264, Player } from "./player.mjs";

const BACK_SECONDS = 2, MOST_ANSWERS = 2000;
const LOCAL = ["127.0.0.1", "localhost", "[::1]"].includes(location.hostname);
const $ = (selector) => document.querySelector(selector);
const stage = $(".stage"), bar = $(".bar");
const world = { facts: null, figures: {}, chunk: 0, answers: [], began: 0, first: 0, paused: false, format: "jpeg", dropped: 0 };
let connection = null;

const player = new Player($("canvas"), (frame) => {
  world.chunk = frame.chunk;
  world.first ||= performance.now() - world.began;
  world.answers = [...world.answers, ...(connection?.seen(frame.event) ?? [])].slice(-MOST_ANSWERS);
});
const input = new Input(stage, (kind, payload) => connection?.send(kind, payload));
const begin = new Begin($(".begin"), walk);

async function walk({ image, prompt }) {
  connection?.close();
  player.clear();
  world.format = query("format") ?? (LOCAL || !(await playsH264()) ? "jpeg" : "h264");
  const output = { realtime_output_format: world.format, output_compression: world.format === "jpeg" ? 88 : 80 };
  Object.assign(world, { answers: [], began: performance.now(), first: 0, dropped: 0, figures: {} });
  bar.prompt.value = prompt;
  connection = new Connection({ prompt, first_frame: image, ...output, fps: Number(query("fps")) || undefined }, {
    frames: (header, payload) => { say(); player.add(header, payload); },
    status,
    failed: (reason) => say(reason),
    closed: (reason) => leave(reason),
  });
  show("walk");
  say("The world is made ...");
  $("canvas").focus();
}

const query = (name) => new URLSearchParams(location.search).get(name);

function show(state) {
  stage.dataset.state = state;
  begin.root.hidden = state === "walk";
  input.active = state === "walk";
  for (const element of bar.elements) element.disabled = state !== "walk";
  const touch = matchMedia("(pointer: coarse)").matches;
  document.querySelectorAll(".stick").forEach((stick) => { stick.hidden = !touch; });
}

function say(text = "") {
  $(".notice").textContent = text;
}

const STATUS = {
  started: (message) => {
    world.facts = message;
    player.fps = message.fps;
    const { window: frames, sink, chunk } = message;
    figure("window", `window ${frames}+${sink}, chunk ${chunk}`);
    for (const link of document.querySelectorAll("[data-save]")) {
      const token = query("token");
      link.href = `walk/${link.dataset.save}?walk=${encodeURIComponent(message.resume)}${token ? `&token=${encodeURIComponent(token)}` : ""}`;
    }
  },
  waiting: ({ place }) => say(`Somebody walks here. You are number ${place} in line.`),
  figures: (message) => { world.figures = message; adapt(message); },
  paused: () => { pauseShown(true); say("Paused. Press a key to go on."); },
  resumed: () => { pauseShown(false); say(); },
  prompt: ({ text }) => { say(`Now: ${text}`); setTimeout(say, 2500); },
  back: () => player.clear(),
  restarted: () => player.clear(),
  lost: () => say("The connection is lost. It is taken up again ..."),
  kept: ({ reason }) => say(reason),
  failed: ({ reason }) => say(reason),
};
const status = (message) => STATUS[message.content]?.(message);

function pauseShown(paused) {
  world.paused = paused;
  const button = $('[data-command="pause"]');
  button.setAttribute("aria-pressed", paused);
  button.textContent = paused ? "Go on" : "Pause";
}

/** What does not arrive in time is sent smaller: H.264 where the browser plays it, else smaller pictures. */
async function adapt({ dropped }) {
  if (dropped <= world.dropped + 4) return;
  world.dropped = dropped;
  if (world.format === "jpeg" && await playsH264()) {
    world.format = "h264";
    player.clear();
    connection.send("output", { realtime_output_format: "h264", output_compression: 70 });
  } else {
    const width = Math.max(160, Math.round(world.facts.width * 0.6));
    connection.send("output", { realtime_output_format: world.format, output_compression: 60, realtime_preview_max_width: width });
  }
}

function leave(reason) {
  connection?.close();
  connection = null;
  document.exitPointerLock?.();
  begin.say(reason ?? "");
  say();
  show("begin");
}

function figure(name, text) {
  $(`[data-figure="${name}"]`).textContent = text;
}

const percentile = (values, share) => [...values].sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor(share * values.length))];

setInterval(() => {
  const { figures, answers } = world, gigabytes = (bytes) => (bytes / 1e9).toFixed(1);
  figure("rate", player.rate.toFixed(1));
  const recent = answers.slice(-100);
  figure("latency", recent.length ? `${Math.round(percentile(recent, 0.5))} / ${Math.round(percentile(recent, 0.95))}` : "-");
  figure("busy", figures.busy === undefined ? "" : `busy ${Math.round(100 * figures.busy)} %`);
  figure("gpu", figures.gpu_total ? `${gigabytes(figures.gpu_used)} of ${gigabytes(figures.gpu_total)} GB` : "");
}, 500);

/** What was measured, as JSON. */
export const measures = () => ({
  first_frame_s: world.first / 1000, keys: world.answers.length,
  key_to_pixel_p50_s: (percentile(world.answers, 0.5) ?? 0) / 1000,
  key_to_pixel_p95_s: (percentile(world.answers, 0.95) ?? 0) / 1000,
  frames_a_second: player.rate, stalls: player.stalls, format: world.format, walk: world.facts, server: world.figures,
});

function download(name, text) {
  const link = Object.assign(document.createElement("a"), { download: name, href: URL.createObjectURL(new Blob([text])) });
  link.click();
  URL.revokeObjectURL(link.href);
}

const COMMANDS = {
  pause: () => connection?.send(world.paused ? "resume" : "pause"),
  back: () => {
    const chunk = 4 * (world.facts?.chunk ?? 1) / player.fps;
    connection?.send("back", Math.max(0, world.chunk - Math.ceil(BACK_SECONDS / chunk)));
  },
  restart: () => connection?.send("restart", { prompt: bar.prompt.value, first_frame: begin.image ?? undefined }),
  picture: () => { show("begin"); connection?.send("pause"); },
  full: () => (document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen()),
  measures: () => download("live.json", JSON.stringify(measures(), null, 1)),
  leave: () => leave("The walk is over; what was walked is kept."),
};
const SHORT = { Space: "pause", Backspace: "back", KeyR: "restart", KeyO: "picture", KeyF: "full" };

document.addEventListener("click", ({ target }) => COMMANDS[target.closest?.("[data-command]")?.dataset.command]?.());
document.addEventListener("keydown", (event) => {
  const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.repeat;
  const onButton = event.target instanceof Element && event.target.closest("button, summary, a");
  if (!input.active || !plain || isTyping(event.target) || (onButton && event.code === "Space") || !SHORT[event.code]) return;
  event.preventDefault();
  COMMANDS[SHORT[event.code]]();
});
bar.addEventListener("submit", (event) => {
  event.preventDefault();
  if (bar.prompt.value.trim()) connection?.send("prompt", { text: bar.prompt.value, refresh: bar.refresh.checked });
  $("canvas").focus();
});
show("begin");
