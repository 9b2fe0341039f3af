// Buttons on the nodes that make model files, Toy Package and Quantize: each runs its node alone, and has every list on
// the canvas show what was made.

import {
  addButton, allNodes, createNode, linkOf, queueNode, redrawGraph, refreshLists, setField, toast,
} from "./frontend.js";
import { rememberPicture } from "./picture.js";
import { words } from "../../live/words.mjs";

const EXPERTS = "LingBotWorldLoadExperts", TOY = "LingBotWorldToyPackage", QUANTIZE = "LingBotWorldQuantize";
const PACK = "LingBotWorld";
const ACTIVE = 0;
const FROM_PACKAGE = "from the package";
const CHOSEN = { // on loaders, when the toy is chosen
  package: "toy", high_noise_expert: FROM_PACKAGE, low_noise_expert: FROM_PACKAGE,
  model_name: "toy/lingbot_world_fast", vae_name: "toy/Wan2.1_VAE.pth",
  text_encoder: "toy/models_t5_umt5-xxl-enc-bf16.pth", tokenizer: "auto",
};
const CLIP = "CLIPLoader", TEXT_ENCODER = "LingBotWorldLoadTextEncoder", PROMPT = "LingBotWorldTextEncode";
const LORA = "LoraLoaderModelOnly", LOAD_IMAGE = "LoadImage", BYPASS = 4; // the toy has no LoRAs
const WALK = { window: 18, sink: 6, chunk: "1" };
const SIZE = { size: "width and height", width: 256, height: 144 };
const SET = { // by the type of the node, when the toy is chosen
  LingBotWorldPrepareImage: SIZE, LingBotWorldRollout: WALK, LingBotWorldLive: WALK,
  LingBotWorldSampler: { steps: 8, cfg_high: 1, cfg_low: 1 },
  [PROMPT]: { prompt: "a maze with red and blue walls by day" },
};
const BASE_FRAMES = 33, WALK_FRAMES = 97; // that the toy's models know

const tell = (summary, detail) => toast("success", summary, detail, 6000);

/** Queues a node alone, even one that sleeps in its graph. */
async function runAlone(node) {
  const { mode } = node;
  node.mode = ACTIVE;
  try {
    await queueNode(node.id);
  } finally {
    node.mode = mode;
  }
}

/** Adds the button that runs a node alone. After a run has the lists on the canvas show what the node made, and tells
 * of it; not after a later run of the workflow that found everything `ready`. */
function makeByButton(node, name, label, tellOf, ready = /(?!)/) {
  const { onExecuted } = node;
  let pressed = false;
  addButton(node, name, label, () => { pressed = true; return runAlone(node); });
  node.onExecuted = function (output) {
    onExecuted?.call(this, output);
    rememberPicture(node, output?.start?.[0]);
    const said = output?.text?.[0] ?? "", isNews = pressed || !ready.test(said);
    pressed = false;
    if (!isNews) return;
    tellOf(said);
    refreshLists();
  };
}

/** Has all that one node's first output goes to come from another's. */
function moveLinks(from, to) {
  const { graph } = from;
  for (const id of [...from.outputs[0].links ?? []]) {
    const { target_id: target, target_slot: slot } = linkOf(graph, id);
    to.connect(0, graph.getNodeById(target), slot);
  }
}

/** Puts our text encoder's loader in the place of core's, which reads umt5 of the official size alone. */
function replaceClip(node) {
  const { graph, pos } = node, made = createNode(TEXT_ENCODER);
  graph.add(made);
  made.pos = [...pos];
  moveLinks(node, made);
  graph.remove(node);
}

/** An editor's document with its keyframes spread over at most so many frames. */
function shortened(text, most) {
  const state = JSON.parse(text);
  if (state.frames <= most) return text;
  const scale = (frame) => Math.round(frame * (most - 1) / (state.frames - 1));
  const keyframes = state.keyframes.map((each) => ({ ...each, frame: scale(each.frame) }));
  return JSON.stringify({ ...state, frames: most, keyframes });
}

/** What a field of one of our nodes, or of a subgraph, gets where the toy is chosen; undefined where it stays. */
function toyValue({ comfyClass, subgraph }, { name, value }, most) {
  const own = subgraph ? { ...SIZE, ...SET[PROMPT] } : SET[comfyClass] ?? {};
  if (name in own) return own[name];
  if (name === "frames" && value > most) return most;
  if (name === "path" && typeof value === "string" && value.startsWith("{")) return shortened(value, most);
  return CHOSEN[name];
}

/** Puts every loader of the open workflow on the toy, with its size, frames and window; on a subgraph's own fields too.
 * The toy's image takes the place of ComfyUI's example. */
function useToy(toy) {
  allNodes().filter(({ comfyClass }) => comfyClass === CLIP).forEach(replaceClip);
  const nodes = allNodes(), hasBase = nodes.some(({ comfyClass }) => comfyClass === EXPERTS);
  const most = hasBase ? BASE_FRAMES : WALK_FRAMES;
  for (const node of nodes) {
    const { comfyClass, graph, subgraph } = node;
    if (comfyClass === LORA) node.mode = BYPASS;
    const isExample = comfyClass === LOAD_IMAGE && node.widgets?.[0].value === "example.png";
    if (isExample && graph === toy.graph) moveLinks(node, toy);
    if (!(comfyClass?.startsWith(PACK) || subgraph) || comfyClass === QUANTIZE) continue;
    for (const widget of node.widgets ?? []) {
      const value = toyValue(node, widget, most);
      if (value !== undefined) setField(widget, value);
    }
  }
  redrawGraph();
  refreshLists();
  tell(words("Toy package"), words(
    "Loaders, size (256x144), frames (at most {most}), window and prompt of this workflow are the toy's.", { most },
  ));
}

/** Keeps a new node of any type as it is, unless it is Toy Package. */
export function addToyButton(node) {
  if (node.comfyClass !== TOY) return;
  const label = words("Make the toy package");
  makeByButton(node, "Make the toy package", label, (said) => tell(words("Toy package"), said), /^Ready/);
  addButton(node, "Use the toy", words("Use the toy"), () => useToy(node));
}

/** Keeps a new node of any type as it is, unless it is Quantize. */
export function addQuantizeButton(node) {
  if (node.comfyClass !== QUANTIZE) return;
  const done = () => tell(words("Quantize"), words("The 4-bit package is ready, and the loaders list it."));
  makeByButton(node, "Quantize now", words("Quantize now"), done);
}
