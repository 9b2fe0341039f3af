// Pointers and the wheel on a canvas.

const middle = (a, b) => [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2];
const apart = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]) || 1;

/**
 * One pointer drags: pane.start(point, event) returns what to call with each (point, delta), pane.end() follows. Two
 * fingers call pane.pan(delta) and pane.zoom(factor, point); so does the wheel once the editor has the focus, as
 * ComfyUI's own widgets do. Points are in the canvas's own CSS pixels, whatever zoom the graph is at.
 */
export function gestures(canvas, pane) {
  const pointers = new Map(), at = ({ offsetX, offsetY }) => [offsetX, offsetY];
  let move = null;
  const pointerdown = (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, at(event));
    move = pointers.size === 1 ? pane.start(at(event), event) : () => {};
  };
  const pointermove = (event) => {
    const before = pointers.get(event.pointerId), now = at(event);
    if (!before) return;
    const other = [...pointers.values()].find((point) => point !== before), delta = [now[0] - before[0], now[1] - before[1]];
    pointers.set(event.pointerId, now);
    if (!other) move(now, delta);
    else {
      pane.pan(delta.map((pixels) => pixels / 2));
      pane.zoom(apart(now, other) / apart(before, other), middle(now, other));
    }
    pane.host.redraw(pane);
  };
  const pointerup = ({ pointerId }) => {
    if (!pointers.delete(pointerId)) return;
    move = () => {};
    if (!pointers.size) pane.end();
  };
  const wheel = (event) => {
    if (!canvas.closest("[data-capture-wheel]").contains(document.activeElement)) return;
    event.preventDefault();
    event.stopPropagation();
    pane.zoom(Math.exp(-event.deltaY * 0.0015), at(event));
    pane.host.redraw(pane);
  };
  const contextmenu = (event) => event.preventDefault();
  const listeners = { pointerdown, pointermove, pointerup, pointercancel: pointerup, wheel, contextmenu };
  for (const [name, listener] of Object.entries(listeners)) canvas.addEventListener(name, listener, { passive: false });
}
