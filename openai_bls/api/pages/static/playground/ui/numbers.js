// Numbers in words that people read: times and counts.

/** Milliseconds as text, in the unit that suits them. */
export const duration = (ms) => (ms < 10 ? `${ms.toFixed(1)} ms` : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

/** A count as text, with a decimal below 10. */
export const count = (number) => number.toLocaleString("en", { maximumFractionDigits: number < 10 ? 1 : 0 });
