// End of the messages, kept in view while they grow, unless the visitor has scrolled away from it.

/** Pixels from the end that still count as there. */
const NEAR = 120;
/** After an answer its formulas and colours come, and what comes into view is laid out. */
const SETTLING_MS = 1500;

export class ScrollEnd {
  #box;
  #follows = true;
  #top = 0;
  #until = 0;

  /** @param box scrolls
   * @param content grows in it
   * @param grows true while an answer streams in, as a function */
  constructor(box, content, grows) {
    this.#box = box;
    box.addEventListener("scroll", () => {
      // What has grown since the page itself went to the end is no step of the visitor.
      if (this.#isNear) this.#follows = true;
      else if (box.scrollTop < this.#top - 1) this.#follows = false;
      this.#top = box.scrollTop;
    });
    new ResizeObserver(() => this.#follows && (grows() || performance.now() < this.#until) && this.#go()).observe(content);
  }

  get #isNear() {
    return this.#box.scrollHeight - this.#box.scrollTop - this.#box.clientHeight < NEAR;
  }

  #go() {
    this.#box.scrollTop = this.#box.scrollHeight;
    this.#top = this.#box.scrollTop;
  }

  /** Goes to the end, wherever the visitor is. */
  show() {
    this.#follows = true;
    this.follow();
  }

  /** Goes to the end, if the visitor is there, and stays there while the layout settles. */
  follow() {
    this.#until = performance.now() + SETTLING_MS;
    if (this.#follows) this.#go();
  }
}
