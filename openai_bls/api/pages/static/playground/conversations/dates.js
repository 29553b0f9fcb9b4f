// Dates of conversations: the group of the list that one belongs to.

const DAY_MS = 24 * 60 * 60 * 1000;
const MONTH = new Intl.DateTimeFormat("en", { month: "long", year: "numeric" });

/** Midnight of a day, as if it were in UTC: a change of the clock makes no day shorter. */
const dayOf = (date) => Date.UTC(date.getFullYear(), date.getMonth(), date.getDate());

/** Name of the group: how long ago that is, by the visitor's calendar.
 * @param updated milliseconds, as `Date.now()` has them */
export function groupOf(updated, now = Date.now()) {
  const then = new Date(updated);
  const days = Math.round((dayOf(new Date(now)) - dayOf(then)) / DAY_MS);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days <= 7) return "Previous 7 days";
  if (days <= 30) return "Previous 30 days";
  return MONTH.format(then);
}

/** Date and time in the visitor's own form. */
export const inFull = (updated) => new Date(updated).toLocaleString();
