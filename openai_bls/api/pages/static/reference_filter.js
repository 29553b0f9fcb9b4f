// Filter of the reference page: sections whose path, summary or field names have all of the words.

/** What of a section is looked at: not what is said of its fields, in which every word occurs. */
const textOf = (section) => [...section.querySelectorAll("h3, h3 + p, dt code")].map((node) => node.textContent).join("\n").toLowerCase();

const texts = new Map();

function matches(section, words) {
  if (!texts.has(section)) texts.set(section, textOf(section));
  return words.every((word) => texts.get(section).includes(word));
}

/** Shows headings above what is shown alone. */
function showHeadings(headings, isShown) {
  for (const heading of headings) heading.hidden = !isShown(heading);
}

/** True if something is shown between a heading and the next one. */
function leadsToSection(heading) {
  for (let node = heading.nextElementSibling; node && node.localName !== "h2"; node = node.nextElementSibling) if (!node.hidden) return true;
  return false;
}

/** Shows the sections in which all words of `query` are, and their lines in the list.
 * @returns how many there are */
export function filter(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const sections = [...document.querySelectorAll("main > section:not(#start)")];
  for (const section of sections) section.hidden = !matches(section, words);
  const shown = new Set(sections.filter(({ hidden }) => !hidden).map(({ id }) => `#${id}`));
  for (const item of document.querySelectorAll("nav li")) item.hidden = !shown.has(item.firstElementChild.getAttribute("href"));
  showHeadings(document.querySelectorAll("nav h2"), (heading) => [...heading.nextElementSibling.children].some(({ hidden }) => !hidden));
  showHeadings(document.querySelectorAll("main > h2"), leadsToSection);
  for (const node of document.querySelectorAll("#start, #start + p")) node.hidden = words.length > 0;
  return shown.size;
}
