// Work on an element that waits until it is near the visible part of the messages.

import { byId } from "../ui/dom.js";

const MARGIN = "1000px";

const works = new WeakMap();

const observer = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      works.get(target)?.(target);
      works.delete(target);
    }
  },
  // The margin is that of the part that scrolls.
  { root: byId("scroll"), rootMargin: MARGIN },
);

/** Calls `work(node)` once, when `node` is near what is seen. */
export function whenNear(node, work) {
  works.set(node, work);
  observer.observe(node);
}

/** Gives the work on a node up. */
export function forget(node) {
  works.delete(node);
  observer.unobserve(node);
}
