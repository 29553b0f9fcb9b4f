// Storage of the browser; where it is blocked or full, what is kept lasts until the page is left.

function store(kind) {
  return {
    get(name) {
      try {
        return globalThis[kind].getItem(`openai_bls.${name}`);
      } catch {
        return null;
      }
    },
    set(name, value) {
      try {
        if (value) globalThis[kind].setItem(`openai_bls.${name}`, value);
        else globalThis[kind].removeItem(`openai_bls.${name}`);
      } catch {
        // Nothing is lost but the memory of it.
      }
    },
  };
}

/** Kept over visits. Never for keys. */
export const kept = store("localStorage");
/** Forgotten when the tab is closed. */
export const ofThisTab = store("sessionStorage");

/** JSON that was kept, or `otherwise` if there is none that can be read. */
export function keptJson(name, otherwise) {
  try {
    return JSON.parse(kept.get(name) ?? "null") ?? otherwise;
  } catch {
    return otherwise;
  }
}
