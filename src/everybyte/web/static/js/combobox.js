// A text field with a list of proposals below it, after the pattern "combobox" of the ARIA Authoring Practices Guide: arrows choose, Enter and leaving the
// field take the chosen proposal, Escape closes the list, and a second time gives the text back that was there.

import { fill, h, uniqueId } from "./dom.js";

/** A combobox. `search(words)` gives proposals `{value, text, hint}`; `choose(value)` is called with one. `show(text)` sets what the field says. */
export class Combobox {
  #search;
  #choose;
  #proposals = [];
  #at = -1;
  #text = "";
  /** Whether a person has typed what no proposal was taken for yet. */
  #typed = false;

  constructor({ label, placeholder, search, choose }) {
    this.#search = search;
    this.#choose = choose;
    const id = uniqueId("combobox");
    this.input = h("input", {
      id, type: "text", role: "combobox", placeholder, spellcheck: "false", "aria-expanded": "false", "aria-autocomplete": "list", "aria-controls": `${id}-list`,
      oninput: () => ((this.#typed = true), this.#open()), onkeydown: (event) => this.#key(event), onblur: () => this.#leave(), onfocus: () => this.input.select(),
    });
    this.list = h("ul", { id: `${id}-list`, role: "listbox", "aria-label": label, hidden: true });
    this.element = h("div", { class: "combobox" }, h("label", { for: id }, label), this.input, this.list);
  }

  show(text) {
    this.#text = text;
    if (!this.#typed) this.input.value = text;
  }

  async #open() {
    const words = this.input.value;
    const proposals = await this.#search(words).catch(() => []);
    if (words !== this.input.value || document.activeElement !== this.input) return;
    this.#propose(proposals);
    this.#draw();
  }

  #propose(proposals) {
    this.#proposals = proposals;
    this.#at = proposals.length ? 0 : -1;
  }

  #draw() {
    const options = this.#proposals.map((proposal, index) =>
      h(
        "li",
        {
          id: `${this.list.id}-${index}`, role: "option", "aria-selected": String(index === this.#at),
          onmousedown: (event) => (event.preventDefault(), this.#take(index)),
        },
        h("span", {}, proposal.text), h("small", {}, proposal.hint),
      ),
    );
    fill(this.list, options.length ? options : h("li", { role: "option", "aria-disabled": "true", "aria-selected": "false" }, "no match"));
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    if (this.#at >= 0) this.input.setAttribute("aria-activedescendant", `${this.list.id}-${this.#at}`);
    else this.input.removeAttribute("aria-activedescendant");
    this.list.children[Math.max(this.#at, 0)].scrollIntoView({ block: "nearest" });
  }

  #key(event) {
    const open = !this.list.hidden;
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in steps) {
      event.preventDefault();
      if (!open) this.#open();
      else if (this.#proposals.length) {
        this.#at = (this.#at + steps[event.key] + this.#proposals.length) % this.#proposals.length;
        this.#draw();
      }
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (open && this.#at >= 0) this.#take(this.#at);
    } else if (event.key === "Escape" && (open || this.input.value !== this.#text)) {
      event.preventDefault();
      if (open) this.#decline();
      else this.#giveBack();
    }
  }

  #take(index) {
    const proposal = this.#proposals[index];
    this.#close();
    this.#typed = false;
    this.#text = proposal.text;
    this.input.value = proposal.text;
    this.#choose(proposal.value);
  }

  /** Whoever leaves the field after typing gets what is proposed for it, also where the proposals are still on their way. */
  async #leave() {
    const words = this.input.value.trim();
    const isOpen = !this.list.hidden;
    this.#close();
    if (!this.#typed || !words || words === this.#text) return this.#giveBack();
    if (!isOpen) this.#propose(await this.#search(words).catch(() => []));
    if (this.#at >= 0) this.#take(this.#at);
    else this.#giveBack();
  }

  /** Closes the list for good: what is typed stays to be read or changed, and is not taken when the field is left. */
  #decline() {
    this.#close();
    this.#typed = false;
  }

  #giveBack() {
    this.#close();
    this.#typed = false;
    this.input.value = this.#text;
  }

  #close() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }
}
