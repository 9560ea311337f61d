// SPDX-License-Identifier: MIT OR Apache-2.0
/**
 * Arguments of `ulpf watch`, and the text of a watch in the view. This file does not depend on VS Code.
 */

/** One element of the answer to `ulpf/watches` (docs/dap.md). */
export interface Watch {
  number: number;
  breakpointId: number;
  text: string;
  name: string;
  kind: 'r' | 'w' | 'rw';
  log: boolean;
  condition?: string | null;
  address?: string;
  bytes: number;
  places: number;
  enabled: boolean;
  /** Why it does not watch any more. */
  ended?: string | null;
  hits: number;
  silent: number;
  filtered: number;
  stops: number;
  falsePositives: number;
  placement?: string | null;
  /** Places whose memory is gone. */
  gone: number;
}

export type Kind = Watch['kind'];

export interface Wish {
  expression: string;
  kind: Kind;
  log: boolean;
  condition?: string;
}

const KINDS: Record<Kind, string> = { w: 'write', r: 'read', rw: 'access' };

export function kindName(kind: Kind): string {
  return KINDS[kind] ?? kind;
}

/** Why a text is no expression at all, or undefined. The adapter reports errors in an expression. */
export function objection(expression: string): string | undefined {
  const text = expression.trim();
  if (!text) {
    return 'Say what to watch: a variable, arr[0..1024], *ptr@len, list->*next.refcount, heap, …';
  }
  if (/[\r\n\0]/.test(text)) {
    return 'An expression has one line.';
  }
  return undefined;
}

/** The text that `ulpf watch` gets. */
export function watchText(wish: Wish): string {
  const why = objection(wish.expression);
  if (why) {
    throw new Error(why);
  }
  const parts = [wish.expression.trim()];
  if (wish.kind !== 'w') {
    parts.push(`:${wish.kind}`);
  }
  const condition = wish.condition?.trim();
  if (condition) {
    parts.push(`if ${condition}`);
  }
  if (wish.log) {
    parts.push('log');
  }
  return parts.join(' ');
}

/** 1234567 as 1.23 M: a column that keeps its width. */
export function count(n: number): string {
  const steps: [number, string][] = [[1e12, ' T'], [1e9, ' G'], [1e6, ' M'], [1e4, ' k']];
  for (const [least, unit] of steps) {
    if (n >= least) {
      const scaled = n / (unit === ' k' ? 1e3 : least);
      return scaled.toPrecision(Math.max(3, String(Math.trunc(scaled)).length)) + unit;
    }
  }
  return String(n);
}

export function bytes(n: number): string {
  if (n >= 1 << 20) {
    return `${+(n / (1 << 20)).toFixed(1)} MiB`;
  }
  return n >= 1 << 14 ? `${+(n / 1024).toFixed(1)} KiB` : `${n} byte${n === 1 ? '' : 's'}`;
}

/** Behind the name, in grey. */
export function description(watch: Watch): string {
  if (watch.ended) {
    return `ended: ${watch.ended}`;
  }
  const parts = [`${count(watch.hits)} hit${watch.hits === 1 ? '' : 's'}`];
  if (watch.falsePositives > 0) {
    parts.push(`${count(watch.falsePositives)} false`);
  }
  parts.push(watch.log ? `${kindName(watch.kind)}, logged` : kindName(watch.kind));
  if (!watch.enabled) {
    parts.push('off');
  }
  return parts.join(' · ');
}

/** All fields of a watch, for the tooltip and for screen readers: a line each. */
export function details(watch: Watch): [string, string][] {
  const rows: [string, string][] = [
    ['Set with', `ulpf watch ${watch.text}`],
    ['Watches', `${kindName(watch.kind)} of ${bytes(watch.bytes)}${watch.places > 1 ? ` in ${watch.places} places` : ''}`],
  ];
  if (watch.address) {
    rows.push(['From', watch.address]);
  }
  if (watch.condition) {
    rows.push(['Condition', watch.condition]);
  }
  rows.push(
    ['Hits', String(watch.hits)],
    ['Silent stores', `${watch.silent} (the value stayed as it was)`],
    ['Filtered', `${watch.filtered} (condition or filter said no)`],
    ['Stops', String(watch.stops)],
    ['False positives', `${watch.falsePositives} (accesses beside it on its pages)`],
  );
  if (watch.placement) {
    rows.push(['Lives in', { page: 'guarded pages', register: 'debug registers' }[watch.placement] ?? watch.placement]);
  }
  if (watch.gone > 0) {
    rows.push(['Gone', `${watch.gone} place${watch.gone === 1 ? '' : 's'} whose memory the program has given back`]);
  }
  if (watch.ended) {
    rows.push(['Ended', watch.ended]);
  }
  return rows;
}

/** Text for screen readers. */
export function spoken(watch: Watch): string {
  const state = watch.ended ? `ended, ${watch.ended}` : `${watch.hits} hits, ${watch.falsePositives} false positives`;
  return `${watch.name}, ${kindName(watch.kind)} watch${watch.log ? ', logged' : ''}, ${state}`;
}

/** The word or selection that the user points at, as an expression. */
export function expressionIn(line: string, column: number): string | undefined {
  const name = /[A-Za-z_$][\w$]*(?:(?:->|\.|::)[A-Za-z_$][\w$]*|\[[^\][]*\])*/g;
  for (const match of line.matchAll(name)) {
    if (match.index <= column && column <= match.index + match[0].length) {
      return match[0];
    }
  }
  return undefined;
}
