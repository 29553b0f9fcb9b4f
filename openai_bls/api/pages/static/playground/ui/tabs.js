// Row of tabs: one is selected, the arrow keys go from one to the next.

export class Tabs {
  #tabs;
  #onSelect;

  /** @param list the element with the role tablist
   * @param onSelect takes the tab */
  constructor(list, onSelect) {
    this.#tabs = [...list.querySelectorAll("[role=tab]")];
    this.#onSelect = onSelect;
    list.addEventListener("click", ({ target }) => this.#tabs.includes(target) && this.select(target));
    list.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = this.#tabs.at((this.#tabs.indexOf(this.selected) + step) % this.#tabs.length);
      this.select(next);
      next.focus();
    });
    this.#mark(this.selected);
  }

  get selected() {
    return this.#tabs.find((tab) => tab.getAttribute("aria-selected") === "true") ?? this.#tabs[0];
  }

  select(tab) {
    this.#mark(tab);
    this.#onSelect(tab);
  }

  #mark(selected) {
    for (const tab of this.#tabs) {
      tab.setAttribute("aria-selected", String(tab === selected));
      tab.tabIndex = tab === selected ? 0 : -1;
    }
  }
}
