// Names of files on the fields of this pack's nodes, shortened in the middle of each part: renderers cut them at the
// end, where the two experts of a package read alike, and leave no room for the field's label.

const PACK = "LingBotWorld";
const LISTS_OF_FILES = [
  "package", "high_noise_expert", "low_noise_expert", "model_name", "vae_name", "text_encoder", "tokenizer", "source",
  "lora", "poses", "lens", "file",
];
const LONG = 26; // letters that a field of a usual node has room for beside its label, about
const LETTERS = [8, 14, 20]; // that a part of a long name keeps: few, or more where names would read alike
const MORE_FOR_A_FILE = 6; // where only one folder stands before it

/** A text of at most so many letters, with its beginning and its end. */
function middleOut(text, letters) {
  if (text.length <= letters) return text;
  const end = Math.floor((letters - 1) / 2);
  return `${text.slice(0, letters - 1 - end)}\u2026${text.slice(text.length - end)}`;
}

/** A name as a field shows it: "ling…nf4/high…nf4/mode…ors". @param {string} name */
export function shortened(name, letters = LETTERS[0]) {
  if (name.length <= LONG || !name.includes("/")) return name;
  const parts = name.split("/"), file = parts.pop();
  const more = parts.length === 1 ? MORE_FOR_A_FILE : 0;
  return [...parts.map((part) => middleOut(part, letters)), middleOut(file, letters + more)].join("/");
}

/** The same with as many letters as tell it from the other names of a list. @param {string[]} names */
export function labelAmong(name, names) {
  const others = names.filter((other) => other !== name);
  const isAlone = (letters) => !others.some((other) => shortened(other, letters) === shortened(name, letters));
  const letters = LETTERS.find(isAlone);
  return letters ? shortened(name, letters) : name;
}

/** Keeps a new node of any type as it is, unless it is one of the pack's. */
export function shortenNames(node) {
  if (!node.comfyClass?.startsWith(PACK)) return;
  for (const { name, options } of node.widgets ?? []) {
    if (!LISTS_OF_FILES.includes(name)) continue;
    const names = () => (typeof options.values === "function" ? options.values() : options.values) ?? [];
    options.getOptionLabel = (file) => (file == null ? "" : labelAmong(String(file), names().map(String)));
  }
}
