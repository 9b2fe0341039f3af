// Hands the wheel and the middle button to ComfyUI's canvas where the editor has no use for them, as core's text boxes
// do: outside a focused view they zoom and pan the graph. A focused view stops these events before they arrive here.

import { pressCanvas, zoomCanvas } from "./frontend.js";

const MIDDLE = 1;

/** Whether the browser is to have a wheel event: it scrolls a text or a list, or changes the number in focus. */
function isForBrowser({ target }) {
  if (target === document.activeElement && target.matches("input, textarea, select")) return true;
  const scrollable = target.closest("textarea, .lbw-scroll");
  return scrollable !== null && scrollable.scrollHeight > scrollable.clientHeight;
}

function forwardWheel(event) {
  event.stopPropagation();
  if (isForBrowser(event)) return;
  event.preventDefault();
  zoomCanvas(event);
}

/** The graph's canvas captures the pointer, so it hears of the moves and of the release by itself. */
function forwardMiddleButton(event) {
  if (event.button !== MIDDLE) return;
  event.preventDefault();
  event.stopPropagation();
  pressCanvas(event);
}

/** Without this a middle click would give the editor the focus. */
function keepFocus(event) {
  if (event.button === MIDDLE) event.preventDefault();
}

/** @param {HTMLElement} element  of the editor */
export function forwardToCanvas(element) {
  element.addEventListener("wheel", forwardWheel, { passive: false });
  element.addEventListener("pointerdown", forwardMiddleButton);
  element.addEventListener("mousedown", keepFocus);
}
