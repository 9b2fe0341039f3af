// Undo and redo.

/** The states that a document went through. Edits that share a `gesture` (one drag) are undone as one. */
export class History {
  /** @param {import("./document.js").PathState} state */
  constructor(state) {
    this.reset(state);
  }

  /** Forgets all states but this one. */
  reset(state) {
    this.states = [state];
    this.index = 0;
    this.gesture = null;
  }

  get state() {
    return this.states[this.index];
  }

  /** Adds a state and drops those that were undone. @param {object | null} gesture */
  push(state, gesture = null) {
    const continuesGesture = gesture !== null && gesture === this.gesture;
    if (!continuesGesture) this.index += 1;
    this.states.splice(this.index, Infinity, state);
    this.gesture = gesture;
  }

  /** Goes back (-1) or forward (1) by a step; returns whether there was one. @param {-1 | 1} step */
  travel(step) {
    if (!this.states[this.index + step]) return false;
    this.index += step;
    this.gesture = null;
    return true;
  }
}
