// Core's Load 3D (Advanced) shows the view of an API file that is opened on the canvas: by itself it reads its view
// from a property of the node, which such a file lacks, and would come back, and be queued, with its default one.

const NODE = "Load3DAdvanced", FIELD = "viewport_state", PROPERTY = "Camera Config";

/** Keeps a new node of any type as it is, unless it is that one. */
export function keepView(node) {
  const widget = node.comfyClass === NODE && node.widgets?.find(({ name }) => name === FIELD);
  if (!widget) return;
  const { callback } = widget;
  widget.callback = function (value, ...rest) {
    const { fov, ...state } = value?.camera_info ?? {};
    if (state.position && !node.properties[PROPERTY]) {
      node.properties[PROPERTY] = { cameraType: state.cameraType ?? "perspective", fov, state };
    }
    callback?.call(this, value, ...rest);
  };
}
