// Steps back: each counts from where the one before it goes, which is seen only later.

export class Steps {
  /** Another walk begins. */
  constructor() {
    this.chunk = 0; // that is seen
    this.target = null; // of the last step that was sent, until the server has done it
  }

  seen(chunk) {
    this.chunk = chunk;
  }

  /** The chunk that is so many chunks before. */
  before(chunks) {
    return Math.max(0, (this.target ?? this.chunk) - chunks);
  }

  sent(target) {
    this.target = target;
  }

  /** The server has gone to a chunk. */
  done(chunk) {
    this.chunk = chunk;
    if (chunk === this.target) this.target = null;
  }

  /** What was sent is not done any more. */
  forget() {
    this.target = null;
  }
}
