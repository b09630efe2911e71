// Export of one session or all, and an import that is shown before it is done.

import { download, upload } from "./api.js";
import { button, fill, h, newId } from "./dom.js";
import { known, number, t } from "./i18n.js";
import { busy, confirmDialog, failed, folded, loading, note, toast } from "./ui.js";

const SHOWN = 200;

function stamp() {
  return new Date().toISOString().slice(0, 10);
}

function exportCard(session) {
  const messages = h("div", { "aria-live": "polite" });
  const make = (label, params, extension) => {
    const control = button(label, () => busy(control, async () => {
      fill(messages);
      try {
        const { filename } = await download("export", params, `context-manager-${stamp()}.${extension}`);
        fill(messages, note("success", t("transfer.exported", { name: filename })));
      } catch (error) {
        fill(messages, note("error", error.message));
      }
    }), "tonal");
    return control;
  };
  const one = session ? { session_id: session.item.session_id } : null;
  return h("section", { class: "card" }, h("h3", { class: "card-title" }, t("transfer.export")),
    h("p", { class: "hint" }, t("transfer.exportHint")),
    one ? h("div", { class: "row" }, make(t("transfer.oneJson"), { ...one, format: "json" }, "json"), make(t("transfer.oneMarkdown"), { ...one, format: "markdown" }, "md")) : null,
    h("div", { class: "row" }, make(t("transfer.allJson"), { format: "json" }, "json"), make(t("transfer.allMarkdown"), { format: "markdown" }, "md")),
    messages);
}

function scalar(value) {
  if (value === null || value === undefined || value === "") return t("memory.nothing");
  return typeof value === "string" ? value : typeof value === "number" ? number(value) : JSON.stringify(value);
}

function fieldName(name) {
  for (const key of [`memory.${name}`, `settings.${name}`, `transfer.field.${name}`]) if (known(key)) return t(key);
  return name;
}

function valueView(kind, value, whole) {
  return h("div", { class: kind }, h("span", { class: "sr-only" }, t(kind === "old" ? "versions.del" : "versions.add")), folded(scalar(value), whole));
}

/** What would change in one session. */
function sessionView(changes) {
  const [{ display_name: name, session_id: sessionId }] = changes;
  const isNew = changes.every((change) => change.before === null);
  return h("li", { class: "card flat" },
    h("div", { class: "row-top" }, h("bdi", { class: "session-name" }, name || sessionId),
      h("span", { class: "chip" }, t(isNew ? "transfer.action.create" : "transfer.action.update"))),
    changes.map(({ field, before, after }) => h("div", { class: "change" }, h("strong", {}, fieldName(field)),
      before === null ? null : valueView("old", before, 300), valueView("new", after, 300))));
}

function bySession(changes) {
  const groups = new Map();
  for (const change of changes) groups.set(change.session_id, [...(groups.get(change.session_id) ?? []), change]);
  return [...groups.values()];
}

function importCard(changed) {
  const id = newId("file");
  const result = h("div", { class: "stack", "aria-live": "polite" });
  const chosen = h("bdi", { class: "clip hint" });
  const picker = h("input", { type: "file", id, accept: ".json,application/json", class: "sr-only", onchange: () => {
      fill(chosen, picker.files[0]?.name);
      if (picker.files[0]) look(picker.files[0]);
    } });

  async function look(file) {
    fill(result, loading(t("transfer.reading")));
    try {
      const { changes } = await upload("import/preview", file);
      show(file, changes);
    } catch (error) {
      fill(result, failed(error, () => look(file)));
    }
  }

  function show(file, changes) {
    if (!changes.length) {
      fill(result, note("info", t("transfer.noChanges")));
      return;
    }
    const groups = bySession(changes);
    const apply = button(t("transfer.apply", { count: number(changes.length) }), () => busy(apply, () => run(file, changes.length)), "primary");
    fill(result, note("warning", t("transfer.wouldChange", { count: number(changes.length), sessions: number(groups.length) })),
      h("ul", { class: "changes" }, groups.slice(0, SHOWN).map(sessionView)),
      groups.length > SHOWN ? h("p", { class: "hint" }, t("page.shown", { shown: number(SHOWN), total: number(groups.length) })) : null,
      h("div", { class: "row end" }, button(t("action.cancel"), reset), apply));
  }

  function reset() {
    picker.value = "";
    fill(chosen);
    fill(result);
  }

  async function run(file, count) {
    const sure = await confirmDialog({ title: t("transfer.confirmTitle"), body: h("p", {}, t("transfer.confirmText", { count: number(count) })), confirm: t("transfer.apply", { count: number(count) }) });
    if (!sure) return;
    try {
      await upload("import", file);
      reset();
      toast(t("transfer.imported"), "success");
      fill(result, note("success", t("transfer.imported")));
      changed();
    } catch (error) {
      fill(result, note("error", t("transfer.importFailed"), " ", error.message));
    }
  }

  return h("section", { class: "card" }, h("h3", { class: "card-title" }, t("transfer.import")),
    h("p", { class: "hint" }, t("transfer.importHint")),
    h("div", { class: "row picker" }, picker, h("label", { for: id, class: "btn btn-tonal" }, t("transfer.file")), chosen), result);
}

/** The view, for one session or (without one) for everything. */
export function transferView(session, changed = () => {}) {
  const done = () => { session?.reload().catch(() => {}); session?.counts().catch(() => {}); changed(); };
  return h("div", { class: "stack" }, exportCard(session), importCard(done));
}

