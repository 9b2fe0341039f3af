// Listens to the editor's HTML: buttons, keys, held keys and pads, the clipboard. Views listen to their own pointers.

import { COMMANDS, commandFor, keyName } from "./commands.js";
import { words } from "../../live/words.mjs";

const ARROWS = { ArrowLeft: [-1, 0, 0], ArrowRight: [1, 0, 0], ArrowUp: [0, -1, 0], ArrowDown: [0, 1, 0] };
const TYPING = "textarea, select, input";

function isPasteKey(event) {
  const { ctrlKey, metaKey, shiftKey } = event, key = keyName(event);
  return key === "v" ? ctrlKey || metaKey : key === "Insert" && shiftKey;
}

/** Whether ComfyUI queues or saves the workflow at a key with control. */
const isRunOrSaveKey = (event) => ["Enter", "s"].includes(keyName(event));

const isUndoKey = (event) => ["z", "y"].includes(keyName(event));

/** Turns the events of an editor's HTML into calls of the editor. */
export class Input {
  /** @param {import("./editor.js").Editor} editor */
  constructor(editor) {
    this.editor = editor;
    this.pasteKeyIsDown = false;
    const letGo = ({ target }) => this.#hold(target.dataset.hold, false);
    const listeners = {
      click: (event) => this.#click(event),
      keydown: (event) => this.#press(event),
      keyup: (event) => this.#release(event),
      focusout: ({ relatedTarget }) => this.#loseFocus(relatedTarget),
      copy: (event) => this.#copy(event),
      paste: (event) => this.#paste(event),
      pointerdown: ({ target }) => this.#hold(target.dataset.hold, true),
      pointerup: letGo,
      pointercancel: letGo,
      pointerout: letGo,
    };
    for (const [type, listener] of Object.entries(listeners)) editor.element.addEventListener(type, listener);
    const settle = ({ target }) => editor.fields.settle(target);
    editor.element.addEventListener("pointerdown", settle, true); // before the views hear of it
  }

  /** Runs a button's command. After a click by pointer the editor's keys are to work, so the editor takes the focus. */
  #click(event) {
    const { editor } = this;
    const button = event.target.closest("button");
    COMMANDS[button?.dataset.command]?.run(editor, event);
    const byPointer = event.detail > 0;
    if (button && byPointer && !editor.panels.current) editor.element.focus({ preventScroll: true });
    editor.redraw();
  }

  /** Runs what a key stands for. ComfyUI hears of no key except those with control that mean nothing here. */
  #press(event) {
    this.pasteKeyIsDown = isPasteKey(event);
    const control = event.ctrlKey || event.metaKey;
    const command = commandFor(event);
    if (control && !command && isRunOrSaveKey(event)) this.editor.fields.settle();
    if (control ? !command : event.altKey) return;
    event.stopPropagation();
    if (this.#belongsToTarget(event, control)) return;
    if (control) this.editor.fields.settle();
    if (!this.#act(event, control, command)) return;
    event.preventDefault();
    this.editor.redraw();
  }

  #release(event) {
    this.pasteKeyIsDown = false;
    this.#hold(keyName(event), false);
  }

  /** Whether the focused control itself makes something of a key, such as text. */
  #belongsToTarget(event, control) {
    const { key, target } = event;
    if (control && target === this.editor.fields.typing) return isUndoKey(event);
    if (key !== "Escape" && target.matches(control ? "textarea, [type=text]" : TYPING)) return true;
    return target.matches("button") && (key === "Enter" || key === " ");
  }

  /** Does what a key stands for; returns whether it stands for anything. */
  #act(event, control, command) {
    const { editor } = this;
    const plan = editor.plans.find(({ canvas }) => canvas === event.target);
    const arrow = control ? null : ARROWS[event.key];
    if (plan && arrow) plan.nudge(arrow);
    else if (command) (!event.repeat || command.repeats) && command.run(editor, event);
    else return !control && editor.flight !== null && this.#hold(keyName(event), true);
    return true;
  }

  /** Holds or lets go one of the keys W A S D I J K L; returns whether it is one. */
  #hold(key, down) {
    const { editor } = this;
    const pad = editor.find(`[data-hold="${CSS.escape(key)}"]`);
    if (!pad) return false;
    pad.classList.toggle("lbw-held", down);
    if (down) editor.flight?.held.add(key);
    else editor.flight?.held.delete(key);
    editor.redraw();
    return true;
  }

  /** Keys that are let go elsewhere are not heard of: without the focus none counts as held. */
  #loseFocus(focusGoesTo) {
    const { element } = this.editor;
    if (element.contains(focusGoesTo)) return;
    for (const pad of element.querySelectorAll(".lbw-held")) this.#hold(pad.dataset.hold, false);
  }

  #copy(event) {
    if (!this.#takesClipboard(event)) return;
    this.editor.say(words("Copied"));
    event.clipboardData.setData("text/plain", this.editor.text);
  }

  /** Takes a document only from keys: on Linux a middle click anywhere pastes what was last selected. */
  #paste(event) {
    if (!this.#takesClipboard(event) || !this.pasteKeyIsDown) return;
    this.pasteKeyIsDown = false;
    this.editor.say("");
    this.editor.paste(event.clipboardData.getData("text/plain"));
  }

  /** Keeps a clipboard event from ComfyUI and the browser, unless a text field is to have it. */
  #takesClipboard(event) {
    if (event.target.matches("textarea, input")) return false;
    event.preventDefault();
    event.stopPropagation();
    return true;
  }
}
