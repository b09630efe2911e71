// Compressing: focus, progress, cancel, result. The job lives on the server; this
// only looks at it, so leaving and coming back changes nothing.

import { get, post } from "./api.js";
import { button, field, fill, h } from "./dom.js";
import { isFieldDirty } from "./drafts.js";
import { ago, dateTime, number, ownHalf, percent, t } from "./i18n.js";
import { busy, confirmDialog, failed, folded, loading, note } from "./ui.js";

const POLL_MS = 1_000;
const SLOW_POLL_MS = 4_000;

/** "Covers 312 of 340 messages …", with a badge when the history has changed. */
export function coverageLine(coverage) {
  if (!coverage.created_at) return h("p", { class: "coverage hint" }, t("coverage.none", { total: number(coverage.total) }));
  const values = {
    messages: number(coverage.messages), total: number(coverage.total), model: coverage.model || t("coverage.unknownModel"), time: ago(coverage.created_at),
  };
  return h("p", { class: "coverage hint" },
    coverage.out_of_date
      ? [h("span", { class: "chip chip-warning" }, t("coverage.outOfDate")), " ", t("coverage.outOfDateHint", values)]
      : t("coverage.line", values));
}

function progressView(job) {
  const { done, total } = job.progress;
  const running = job.automatic ? t("compress.runningAutomatic") : t("compress.running");
  const label = total > 1 ? t("compress.progress", { done: number(done), total: number(total) }) : running;
  const bar = h("progress", { "aria-label": label, class: "progress" });
  if (total > 1) { bar.max = total; bar.value = done; }
  return h("div", { class: "stack" }, h("p", { role: "status" }, label), bar);
}

function numbersOf(job) {
  const rows = [
    [t("compress.covered"), job.covered === null ? null : number(job.covered)],
    [t("compress.before"), job.tokens_before === null ? null : number(job.tokens_before)],
    [t("compress.after"), job.tokens_after === null ? null : number(job.tokens_after)],
    [t("compress.cost"), job.usage ? t("compress.usage", { input: number(job.usage.input), output: number(job.usage.output) }) : t("compress.notReported")],
  ];
  return h("dl", { class: "numbers" }, rows.filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** What all compressions of the session cost, and why automatic ones wait. */
function ledgerView({ costs, pause }) {
  if (!costs?.jobs && !pause) return null;
  const waits = pause?.until * 1000 > Date.now() ? t("compress.pauseUntil", { time: dateTime(pause.until) }) : "";
  return h("div", { class: "stack" },
    pause ? note("warning", h("strong", {}, t("compress.pause")), " ", ownHalf(pause.reason), " ", waits) : null,
    costs?.jobs ? h("p", { class: "hint costs" }, t("compress.costs", {
      jobs: number(costs.jobs), calls: number(costs.calls), input: number(costs.input_tokens), output: number(costs.output_tokens),
    }), costs.unreported ? ` ${t("compress.unreported", { count: number(costs.unreported) })}` : "") : null);
}

function resultView(session, job) {
  if (job.state === "idle") return null;
  const kinds = { done: "success", failed: "error", cancelled: "info", conflict: "warning" };
  const ended = job.state === "done" || job.state === "conflict";
  const saved = ended ? Math.max(0, (job.tokens_before ?? 0) - (job.tokens_after ?? 0)) : 0;
  return h("div", { class: "stack", "data-job": job.state },
    note(kinds[job.state] ?? "info", ownHalf(job.message) || t(`compress.state.${job.state}`)),
    ended ? numbersOf(job) : null,
    saved ? h("p", { class: "hint" }, t("compress.saved", { share: percent(saved, job.tokens_before) })) : null,
    job.state === "conflict" ? h("div", { class: "row" }, button(t("compress.toVersions"), () => session.show("versions"), "tonal")) : null,
    job.state === "done" && session.row.summary
      ? h("section", { class: "card flat" }, h("h3", { class: "card-title" }, t("compress.review")), folded(session.row.summary, 2000),
        h("div", { class: "row" }, button(t("compress.edit"), () => session.show("memory"), "tonal"), button(t("compress.toVersions"), () => session.show("versions"))))
      : null);
}

/** The tab. */
export function compressTab(session) {
  const sessionId = session.item.session_id;
  const state = h("div", { class: "stack", "aria-live": "polite" });
  const coverage = h("div", {});
  const ledger = h("div", {});
  const messages = h("div", {});
  let timer = 0;
  let left = false;
  session.onLeave(() => { left = true; clearTimeout(timer); });

  const focus = h("textarea", { class: "input", rows: 3, maxlength: 2000, dir: "auto", placeholder: t("compress.focusExample"), value: session.focus ?? "", oninput: (event) => { session.focus = event.target.value; } });
  const start = button(t("compress.start"), () => busy(start, () => run("session/compress", { session_id: sessionId, focus: focus.value.trim() })), "primary");
  const rebuild = button(t("compress.rebuild"), async () => {
    const sure = await confirmDialog({ title: t("compress.rebuildTitle"), body: [h("p", {}, t("compress.rebuildText"))], confirm: t("compress.rebuild") });
    if (sure) await busy(rebuild, () => run("session/compress", { session_id: sessionId, focus: focus.value.trim(), rebuild: true }));
  }, "text");
  const cancel = button(t("action.cancelJob"), () => busy(cancel, () => run("session/compress/cancel", { session_id: sessionId })), "text");

  async function run(endpoint, body) {
    fill(messages);
    try {
      await post(endpoint, body);
      show(await get("session/compress", { session_id: sessionId }), true);
    } catch (error) {
      fill(messages, note("error", error.message));
    }
  }

  function show(job, following) {
    if (left) return;
    const running = job.state === "running";
    start.hidden = running;
    rebuild.hidden = running || !session.row.summary;
    fill(ledger, ledgerView(job));
    cancel.hidden = !running;
    focus.disabled = running;
    if (running) {
      fill(state, progressView(job));
      timer = setTimeout(look, document.hidden ? SLOW_POLL_MS : POLL_MS);
    } else if (job.state === "done" || job.state === "conflict" || (following && job.state === "cancelled")) {
      // It may have ended while another tab was open.
      finish(job);
    } else fill(state, resultView(session, job));
  }

  async function finish(job) {
    await session.reload().catch(() => {});
    await session.counts().catch(() => {});
    if (left) return;
    rebuild.hidden = !session.row.summary;
    fill(coverage, coverageLine(session.row.coverage));
    fill(state, resultView(session, job));
    warnUnsaved();
  }

  async function look() {
    clearTimeout(timer);
    try {
      show(await get("session/compress", { session_id: sessionId }), true);
    } catch (error) {
      if (!left) {
        fill(state, note("warning", t("compress.lost"), " ", error.message));
        timer = setTimeout(look, SLOW_POLL_MS);
      }
    }
  }

  async function first() {
    fill(state, loading());
    try {
      show(await get("session/compress", { session_id: sessionId }), false);
    } catch (error) {
      if (!left) fill(state, failed(error, first));
    }
  }

  function warnUnsaved() {
    if (isFieldDirty(sessionId, "summary")) fill(messages, note("warning", t("compress.unsaved")));
  }

  fill(coverage, coverageLine(session.row.coverage));
  warnUnsaved();
  cancel.hidden = true;
  first();
  return h("div", { class: "stack" },
    h("section", { class: "card" },
      h("h3", { class: "card-title" }, t("compress.title")),
      h("p", { class: "hint" }, t("compress.hint")),
      coverage,
      field(t("compress.focus"), focus, t("compress.focusHint")),
      messages,
      h("div", { class: "row end" }, cancel, rebuild, start)),
    state, ledger);
}
