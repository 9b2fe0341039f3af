// Lets camera files be chosen or dropped on the nodes that read them, as core's image loaders do.

import { addButton, ask, setField, toast } from "./frontend.js";
import { words } from "../../live/words.mjs";

const ADDRESS = "/lingbot_world/camera_files"; // of host/files/uploads.py
const KINDS = [".npy", ".npz", ".json", ".txt", ".csv", ".tum", ".bin", ".zip"];
const BUTTON = "choose files to upload";
const OPTION = "lingbot_upload"; // of nodes/camera_sockets.py

const isCameraFile = (name) => KINDS.some((kind) => name.toLowerCase().endsWith(kind));

/** A message that goes by itself. */
function tell(severity, detail) {
  toast(severity, words("LingBot-World camera files"), detail, 8000);
}

/** Puts a node's list on what the server has stored. */
function choose(node, widget, { chosen, choices }) {
  widget.options.values = choices;
  setField(widget, chosen);
  node.setDirtyCanvas(true, true);
}

/** @param {Array<[string, Blob]>} files  by name, below a folder where they came with one */
async function send(node, widget, kind, files) {
  const body = new FormData();
  body.append("kind", kind);
  for (const [name, file] of files) body.append("file", file, name.replaceAll("/", "|"));
  try {
    const answer = await ask(ADDRESS, { method: "POST", body });
    const said = await answer.json();
    if (answer.ok) choose(node, widget, said);
    else tell("error", said.error);
  } catch (error) {
    tell("error", words("The files could not be sent: {message}", error));
  }
}

/** The files of a dropped folder, by their names below it. */
async function filesBelow(entry, folder = "") {
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => { entry.file(resolve, reject); });
    return [[`${folder}${file.name}`, file]];
  }
  const reader = entry.createReader(), entries = [];
  const read = () => new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
  for (let more = await read(); more.length; more = await read()) entries.push(...more);
  return (await Promise.all(entries.map((inner) => filesBelow(inner, `${folder}${entry.name}/`)))).flat();
}

/** What a drop brings, folders opened. The browser forgets it once the event is over, so all is asked for at once. */
async function droppedFiles({ items, files }) {
  const entries = [...items ?? []].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const loose = [...files].map((file) => [file.name, file]);
  return entries.length ? (await Promise.all(entries.map((entry) => filesBelow(entry)))).flat() : loose;
}

const carriesFiles = ({ dataTransfer }) => [...dataTransfer?.items ?? []].some(({ kind }) => kind === "file");

function openChooser(onFiles) {
  const input = document.createElement("input");
  Object.assign(input, { type: "file", multiple: true, accept: KINDS.join(",") });
  input.onchange = () => onFiles([...input.files].map((file) => [file.name, file]));
  input.click();
}

/** The list of a node that files are for, and which list it is. */
function uploadWidget(node) {
  const inputs = node.constructor.nodeData?.input?.required ?? {};
  for (const [name, [, options]] of Object.entries(inputs)) {
    const widget = options?.[OPTION] && node.widgets?.find((candidate) => candidate.name === name);
    if (widget) return { widget, kind: options[OPTION] };
  }
  return undefined;
}

/** Keeps a new node of any type as it is, unless one of its lists takes uploads. */
export function addUpload(node) {
  const { widget, kind } = uploadWidget(node) ?? {};
  if (!widget) return;
  const take = (files) => {
    const ours = files.filter(([name]) => isCameraFile(name));
    if (ours.length) return send(node, widget, kind, ours);
    return tell("warn", words("Expected {kinds}.", { kinds: KINDS.join(", ") }));
  };
  addButton(node, BUTTON, words("choose files to upload"), () => openChooser(take));
  node.onDragOver = carriesFiles;
  node.onDragDrop = async (event) => {
    if (!carriesFiles(event)) return false;
    await take(await droppedFiles(event.dataTransfer));
    return true;
  };
}
