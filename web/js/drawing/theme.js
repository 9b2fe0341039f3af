// Colours and sharpness of what is drawn, from the page that shows it.

import { clamp } from "../math/vectors.js";

const COLORS = ["background", "text", "muted", "grid", "axis", "key", "accent", "accentFill"];
const SHARPEST = 2; // canvas pixels a CSS pixel

/**
 * The colours that editor.css gives an element, by name.
 * @type {(element: HTMLElement) => import("./painter.js").Theme}
 */
export function readTheme(element) {
  const style = getComputedStyle(element);
  return Object.fromEntries(COLORS.map((name) => [name, style.getPropertyValue(`--lbw-${name}`)]));
}

/** Canvas pixels a CSS pixel: more where the graph is zoomed in. @type {(element: HTMLElement) => number} */
export function sharpnessOf(element) {
  const zoom = element.getBoundingClientRect().width / element.clientWidth;
  return clamp(window.devicePixelRatio * zoom, 1, SHARPEST);
}
