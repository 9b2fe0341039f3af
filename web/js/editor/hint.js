// A line for those who see the editor for the first time; it goes when they edit something or close it.

const SEEN = "lingbotworld.cameraEditor.hintSeen";

function wasSeen() {
  try {
    return localStorage.getItem(SEEN) !== null;
  } catch {
    return false; // the browser keeps nothing for this page
  }
}

function remember() {
  try {
    localStorage.setItem(SEEN, "1");
  } catch {
    // the browser keeps nothing for this page: the hint comes again
  }
}

export class Hint {
  /** @param {HTMLElement} element */
  constructor(element) {
    this.element = element;
    element.hidden = wasSeen();
  }

  /** Hides the hint here, and in all editors to come. */
  dismiss() {
    if (this.element.hidden) return;
    this.element.hidden = true;
    remember();
  }
}
