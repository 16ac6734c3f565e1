// A strip of time: bars of what happened, over a scrubber.
import { html } from "./vendor.js";

export const BARS = 120;
/** How long a strip may be: `[milliseconds, text]`. */
export const SPANS = [[10 * 60_000, "10 minutes"], [60 * 60_000, "1 hour"], [6 * 3_600_000, "6 hours"], [24 * 3_600_000, "1 day"], [7 * 24 * 3_600_000, "1 week"]];

/** A time of the day, with the day where the strip is longer than one. */
export const clock = (t, span = 0) => (span > SPANS[3][0] ? new Date(t).toLocaleString("en-GB") : new Date(t).toLocaleTimeString("en-GB"));

/** Counts by bar: `times` is of `[milliseconds, isWarning]`. */
export function barsOf(times, start, span) {
  const out = Array.from({ length: BARS }, () => ({ normal: 0, warning: 0 }));
  for (const [time, warning] of times) {
    const i = Math.floor(((time - start) / span) * BARS);
    if (i >= 0 && i < BARS) out[i][warning ? "warning" : "normal"]++;
  }
  return out;
}

/** `at` is the bar that the scrubber is before, BARS for the end; `text` says it, and `last` is the text of the end. */
export function Strip({ label, bars, at, start, span, text, last = "now", onAt }) {
  const most = Math.max(4, ...bars.map((b) => b.normal + b.warning));
  return html`<div class="strip"><svg viewBox=${`0 0 ${BARS * 8} 72`} preserveAspectRatio="none" role="img" aria-label=${label}>
      ${bars.map((b, i) => {
        const [n, w] = [(b.normal / most) * 68, (b.warning / most) * 68];
        return html`<g key=${i} class=${i >= at ? "later" : ""}><rect class="normal" x=${i * 8 + 1} y=${72 - n} width="6" height=${n} /><rect class="warning" x=${i * 8 + 1} y=${72 - n - w} width="6" height=${w} /></g>`;
      })}</svg>
    <input type="range" min="0" max=${BARS} value=${at} aria-label="Moment" aria-valuetext=${text} onInput=${(e) => onAt(Number(e.currentTarget.value))} />
    <div class="scale"><span>${clock(start, span)}</span><span>${clock(start + span / 2, span)}</span><span>${last}</span></div></div>`;
}

export function Span({ value, most = SPANS.length, onSpan }) {
  return html`<label class="field"><span class="hidden">Span</span><select value=${value} onChange=${(e) => onSpan(Number(e.currentTarget.value))}>
    ${SPANS.slice(0, most).map(([ms, text]) => html`<option key=${ms} value=${ms}>${text}</option>`)}</select></label>`;
}
