// Canvases and pointer gestures.

/** Makes a canvas as sharp as the zoomed page shows it; returns its context in CSS pixels and its size. */
export function prepareCanvas(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const ratio = Math.min(2, Math.max(1, (window.devicePixelRatio * canvas.getBoundingClientRect().width) / width));
  const size = { width: Math.round(width * ratio), height: Math.round(height * ratio) };
  if (canvas.width !== size.width || canvas.height !== size.height) Object.assign(canvas, size);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "10px system-ui, sans-serif";
  return { context, width, height };
}

/** Where an event is in the element's own CSS pixels, whatever zoom the graph is at. */
function localPoint(target, event) {
  const rect = target.getBoundingClientRect(), zoom = rect.width / target.offsetWidth;
  return [(event.clientX - rect.left) / zoom, (event.clientY - rect.top) / zoom];
}

function spread([a, b]) {
  return { middle: [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2], size: Math.max(1, Math.hypot(a[0] - b[0], a[1] - b[1])) };
}

/**
 * One pointer drags: start(point, event) returns what to call with each (point, delta). Two fingers call pan(delta) and
 * zoom(factor, point); so does the wheel once the editor has the focus, as ComfyUI's own widgets do.
 */
export function gestures(canvas, { start, end = () => {}, zoom = () => {}, pan = () => {} }) {
  const pointers = new Map();
  let move = null;
  const down = (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, localPoint(canvas, event));
    if (pointers.size === 1) move = start(localPoint(canvas, event), event);
  };
  const drag = (event) => {
    const before = pointers.get(event.pointerId), now = localPoint(canvas, event);
    if (!before) return;
    const old = pointers.size === 2 && spread([...pointers.values()]);
    pointers.set(event.pointerId, now);
    if (!old) return void (pointers.size === 1 && move(now, [now[0] - before[0], now[1] - before[1]]));
    const { middle, size } = spread([...pointers.values()]);
    pan([middle[0] - old.middle[0], middle[1] - old.middle[1]]);
    zoom(size / old.size, middle);
  };
  const up = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    move = () => {};
    if (!pointers.size) end();
  };
  const wheel = (event) => {
    if (!canvas.closest("[data-capture-wheel]").contains(document.activeElement)) return;
    event.preventDefault();
    event.stopPropagation();
    zoom(Math.exp(-event.deltaY * 0.0015), localPoint(canvas, event));
  };
  const listeners = { pointerdown: down, pointermove: drag, pointerup: up, pointercancel: up, wheel };
  for (const [name, listener] of Object.entries(listeners)) canvas.addEventListener(name, listener, { passive: false });
  canvas.addEventListener("contextmenu", (event) => event.preventDefault());
}
