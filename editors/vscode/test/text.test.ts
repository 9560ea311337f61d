// SPDX-License-Identifier: MIT OR Apache-2.0
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Watch, bytes, count, description, details, expressionIn, objection, spoken, watchText } from '../src/text';

const watch: Watch = {
  number: 3, breakpointId: 1000003, text: 'arr[0..9]', name: 'arr[0..9]', kind: 'w', log: false, condition: null,
  address: '0x4040a0', bytes: 40, places: 1, enabled: true, ended: null, hits: 12, silent: 2, filtered: 0, stops: 12,
  falsePositives: 34567, placement: 'page', gone: 0,
};

test('what ulpf watch gets', () => {
  assert.equal(watchText({ expression: ' total ', kind: 'w', log: false }), 'total');
  assert.equal(watchText({ expression: 'arr[0..9]', kind: 'rw', log: true, condition: ' $new > 3 ' }), 'arr[0..9] :rw if $new > 3 log');
  assert.equal(watchText({ expression: 'x', kind: 'r', log: false, condition: '' }), 'x :r');
  assert.throws(() => watchText({ expression: ' ', kind: 'w', log: false }), /Say what to watch/);
});

test('expressions that cannot be meant', () => {
  assert.equal(objection('arr[0..=0]'), undefined);
  assert.equal(objection('list->*next.refcount'), undefined);
  assert.match(objection('a\nquit') ?? '', /one line/);
  assert.match(objection('') ?? '', /Say what to watch/);
});

test('counts keep three digits', () => {
  assert.deepEqual([0, 9999, 10000, 123456, 1234567, 2.5e9, 7e12].map(count),
    ['0', '9999', '10.0 k', '123 k', '1.23 M', '2.50 G', '7.00 T']);
  assert.deepEqual([1, 8, 16384, 1 << 20, 1572864].map(bytes), ['1 byte', '8 bytes', '16 KiB', '1 MiB', '1.5 MiB']);
});

test('what the view shows', () => {
  assert.equal(description(watch), '12 hits · 34.6 k false · write');
  assert.equal(description({ ...watch, hits: 1, falsePositives: 0, log: true }), '1 hit · write, logged');
  assert.equal(description({ ...watch, ended: 'main has returned' }), 'ended: main has returned');
  const rows = new Map(details({ ...watch, condition: '$new > 3', gone: 1, places: 2 }));
  assert.equal(rows.get('Set with'), 'ulpf watch arr[0..9]');
  assert.equal(rows.get('Watches'), 'write of 40 bytes in 2 places');
  assert.equal(rows.get('Condition'), '$new > 3');
  assert.equal(rows.get('False positives'), '34567 (accesses beside it on its pages)');
  assert.equal(rows.get('Lives in'), 'guarded pages');
  assert.match(rows.get('Gone') ?? '', /1 place whose memory/);
  assert.equal(spoken(watch), 'arr[0..9], write watch, 12 hits, 34567 false positives');
});

test('the expression under the cursor', () => {
  const line = '\tnode->next.value = table[i + 1].count + std::max;';
  assert.equal(expressionIn(line, 3), 'node->next.value');
  assert.equal(expressionIn(line, line.indexOf('count')), 'table[i + 1].count');
  assert.equal(expressionIn(line, line.indexOf('max')), 'std::max');
  assert.equal(expressionIn(line, line.indexOf('=')), undefined);
});
