// Long-term memories of one session: search, add, edit, review, delete.

import { get, post } from "./api.js";
import { button, field, fill, h } from "./dom.js";
import { ago, dateTime, known, number, t } from "./i18n.js";
import { busy, confirmDialog, empty, failed, folded, loading, note, toast } from "./ui.js";

const PAGE = 50;
const LONGEST = 2000;
const SEARCH_MS = 250;

function tagsOf(text) {
  return text.split(/[,，、]/).map((tag) => tag.trim()).filter(Boolean);
}

/** Text and tags of a memory, with the buttons that the caller gives. */
function form(memory, makeButtons) {
  const text = h("textarea", { class: "input", rows: 3, dir: "auto", maxlength: LONGEST, value: memory?.text ?? "" });
  const tags = h("input", { class: "input", dir: "auto", maxlength: 200, value: (memory?.tags ?? []).join(", ") });
  const messages = h("div", { "aria-live": "polite" });
  const values = () => ({ text: text.value, tags: tagsOf(tags.value) });
  const node = h("div", { class: "stack" },
    field(t("memories.text"), text, t("memories.textHint")),
    field(t("memories.tags"), tags, t("memories.tagsHint")),
    messages, h("div", { class: "row end" }, makeButtons({ values, messages, text, tags })));
  return node;
}

/** The tab. */
export function memoriesTab(session) {
  const sessionId = session.item.session_id;
  const list = h("div", { class: "stack", "data-memories": "" });
  const foot = h("div", { class: "row" });
  const adding = h("section", { class: "card", "data-add": "" });
  const search = h("input", { type: "text", inputmode: "search", class: "input", dir: "auto", maxlength: 200, oninput: later });
  const clearButton = button(t("memories.clear"), clearAll, "text");
  let items = [];
  let total = 0;
  let asked = 0;
  let timer = 0;
  let left = false;
  session.onLeave(() => { left = true; clearTimeout(timer); });

  function later() {
    clearTimeout(timer);
    timer = setTimeout(load, SEARCH_MS);
  }

  function page(offset) {
    return get("memories", { session_id: sessionId, q: search.value.trim(), limit: PAGE, offset });
  }

  async function save(body, messages, done, text) {
    try {
      const memory = await post("memories", { session_id: sessionId, ...body });
      fill(messages);
      toast(text, "success");
      done(memory);
    } catch (error) {
      fill(messages, note("error", error.message));
    }
  }

  function renderAdd() {
    fill(adding, h("h3", { class: "card-title" }, t("memories.add")), form(null, ({ values, messages }) => {
      const add = button(t("memories.addButton"), () => busy(add, () => save(values(), messages, () => {
        renderAdd();
        search.value = "";
        load();
      }, t("memories.added"))), "primary");
      return add;
    }));
  }

  function chips(memory) {
    const source = `memories.source.${memory.source}`;
    return [
      h("span", { class: "chip" }, t("memories.number", { id: memory.id })),
      memory.about ? h("bdi", { class: "chip clip" }, t("memories.about", { name: memory.about })) : null,
      h("span", { class: "chip" }, known(source) ? t(source) : memory.source),
      memory.flagged && !memory.reviewed ? h("span", { class: "chip chip-warning" }, t("memories.flagged")) : null,
      memory.reviewed ? h("span", { class: "chip chip-success" }, t("memories.reviewed")) : null,
      memory.tags.map((tag) => h("bdi", { class: "chip clip" }, `#${tag}`)),
    ];
  }

  function meta(memory) {
    return h("p", { class: "row-meta" },
      h("time", { title: dateTime(memory.created_at) }, t("memories.created", { time: ago(memory.created_at) })),
      memory.recalled_at
        ? h("time", { title: dateTime(memory.recalled_at) }, t("memories.recalled", { time: ago(memory.recalled_at) }))
        : h("span", {}, t("memories.neverRecalled")));
  }

  function replace(memory) {
    items = items.map((each) => (each.id === memory.id ? memory : each));
    render();
  }

  function shown(card, memory) {
    const messages = h("div", { "aria-live": "polite" });
    const review = button(t("memories.review"), () => busy(review, () => save(
      { id: memory.id, text: memory.text, reviewed: true }, messages, replace, t("memories.saved"))), "tonal");
    return fill(card, h("div", { class: "row" }, chips(memory)), folded(memory.text), meta(memory), messages,
      h("div", { class: "row end" }, memory.reviewed ? null : review,
        button(t("memories.edit"), () => editing(card, memory)),
        button(t("memories.delete"), () => remove(memory, messages))));
  }

  function editing(card, memory) {
    fill(card, form(memory, ({ values, messages }) => {
      const keep = button(t("action.save"), () => busy(keep, () => save(
        { id: memory.id, ...values() }, messages, replace, t("memories.saved"))), "primary");
      return [button(t("action.cancel"), () => shown(card, memory)), keep];
    }));
    card.querySelector("textarea").focus();
  }

  async function remove(memory, messages) {
    const body = [h("p", {}, t("memories.deleteText")), folded(memory.text, 300)];
    if (!await confirmDialog({ title: t("memories.deleteTitle"), body, confirm: t("memories.delete"), danger: true })) return;
    await forget({ ids: [memory.id] }, messages, () => t("memories.deleted"));
  }

  async function clearAll() {
    const { total: count } = await get("memories", { session_id: sessionId, limit: 1 }).catch(() => ({ total }));
    const values = { count: number(count) };
    const sure = await confirmDialog({
      title: t("memories.clearTitle"), body: h("p", {}, t("memories.clearText", values)),
      confirm: t("memories.clearConfirm", values), danger: true,
    });
    if (sure) await forget({ all: true }, foot, (deleted) => t("memories.cleared", { count: number(deleted) }));
  }

  async function forget(which, messages, text) {
    try {
      const { deleted } = await post("memories/delete", { session_id: sessionId, ...which });
      toast(text(deleted), "success");
      load();
    } catch (error) {
      fill(messages, note("error", error.message));
    }
  }

  function render() {
    clearButton.hidden = !items.length && !search.value;
    if (!items.length) {
      fill(list, search.value.trim() ? empty(t("memories.noneFound")) : empty(t("memories.none"), t("memories.noneHint")));
      fill(foot);
      return;
    }
    fill(list, items.map((memory) => shown(h("article", { class: "card", "data-memory": memory.id }), memory)));
    fill(foot, h("span", { class: "hint", role: "status" }, t("page.shown", { shown: number(items.length), total: number(total) })),
      items.length < total ? button(t("page.more"), more, "tonal") : null);
  }

  async function more() {
    try {
      const answer = await page(items.length);
      items = [...items, ...answer.items];
      total = answer.total;
      if (!left) render();
    } catch (error) {
      fill(foot, failed(error, more));
    }
  }

  async function load() {
    asked += 1;
    const mine = asked;
    if (!items.length) fill(list, loading());
    try {
      const answer = await page(0);
      if (left || mine !== asked) return;
      ({ items, total } = answer);
      render();
    } catch (error) {
      if (!left && mine === asked) fill(list, failed(error, load));
    }
  }

  renderAdd();
  load();
  const off = session.row.options.memory_enabled ? null
    : note("info", t("memories.off"), " ", button(t("memories.toSettings"), () => session.show("settings"), "text"));
  return h("div", { class: "stack" }, h("p", { class: "hint" }, t("memories.hint")), off, adding,
    h("div", { class: "row" }, h("div", { class: "grow" }, field(t("memories.search"), search, t("memories.searchHint"))), clearButton),
    list, foot);
}
