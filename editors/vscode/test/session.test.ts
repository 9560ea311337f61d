// SPDX-License-Identifier: MIT OR Apache-2.0
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Watch, description, details, watchText } from '../src/text';
import { Adapter, example, unable } from './adapter';

test('a session as VS Code leads it', { skip: unable() }, async () => {
  const adapter = new Adapter();
  await adapter.start();
  try {
    await Promise.all([
      adapter.waitForEvent('initialized'),
      adapter.initializeRequest({ adapterID: 'ulpf', linesStartAt1: true, columnsStartAt1: true, pathFormat: 'path' }),
      adapter.launchRequest({ program: example('five'), args: [], console: 'internalConsole' } as never),
    ]);

    // More than a processor has debug registers, each found as the editor finds it: by its name.
    const names = ['a', 'b', 'c', 'd', 'e', 'unwatched[5]'];
    const breakpoints = [];
    for (const name of names) {
      const { body } = await adapter.customRequest('dataBreakpointInfo', { name });
      assert.deepEqual(body.accessTypes, ['read', 'write', 'readWrite']);
      breakpoints.push({ dataId: body.dataId, accessType: 'write' });
    }
    const set = await adapter.customRequest('setDataBreakpoints', { breakpoints });
    assert.deepEqual(set.body.breakpoints.map((b: { verified: boolean }) => b.verified), names.map(() => true));

    // Requests as the extension's commands send them, and the rows of its view.
    const logged = watchText({ expression: 'unwatched[0..64]', kind: 'w', log: true });
    await adapter.customRequest('ulpf/watch', { text: logged });
    for (const [text, why] of [['unwatched[0..0]', /is empty/], ['unwatched[9..3]', /ends before it begins/]] as const) {
      await assert.rejects(adapter.customRequest('ulpf/watch', { text }), why);
    }

    const first = adapter.waitForEvent('stopped');
    await adapter.configurationDoneRequest();
    const stop = await first;
    assert.equal(stop.body.reason, 'data breakpoint');
    assert.equal(stop.body.text, 'a: 10 → 11 (hit 1)');

    const list = async (): Promise<Watch[]> => (await adapter.customRequest('ulpf/watches')).body.watches;
    let watches = await list();
    assert.equal(watches.length, 7);
    const a = watches.find(w => w.name === 'a');
    assert.ok(a);
    assert.match(description(a), /^1 hit · .*write$/);
    assert.equal(new Map(details(a)).get('Watches'), 'write of 4 bytes');

    const second = adapter.waitForEvent('stopped');
    await adapter.continueRequest({ threadId: 1 });
    assert.equal((await second).body.text, 'b: 20 → 21 (hit 1)');

    const log = (await list()).find(w => w.log);
    assert.ok(log && log.hits >= 1, 'the page-mate\'s store is logged');
    const { body } = await adapter.evaluateRequest({ expression: 'ulpf last unwatched[0]', context: 'repl' });
    assert.match(body.result, /main/);
    for (const watch of watches) {
      await adapter.customRequest('ulpf/unwatch', { number: watch.number });
    }
    watches = await list();
    assert.deepEqual(watches, []);

    const over = Promise.all([adapter.waitForEvent('exited'), adapter.waitForEvent('terminated')]);
    await adapter.continueRequest({ threadId: 1 });
    assert.equal((await over)[0].body.exitCode, 0);
  } finally {
    await adapter.stop();
  }
});

test('mistakes are told of, and the session lives', { skip: unable() }, async () => {
  const adapter = new Adapter();
  await adapter.start();
  try {
    await adapter.initializeRequest({ adapterID: 'ulpf', pathFormat: 'path' });
    await assert.rejects(adapter.launchRequest({ program: '/no/such/program' } as never), /no\/such\/program/);
    await Promise.all([
      adapter.waitForEvent('initialized'),
      adapter.launchRequest({ program: example('five'), console: 'internalConsole' } as never),
    ]);
    const nothing = await adapter.customRequest('dataBreakpointInfo', { name: 'no_such_variable' });
    assert.equal(nothing.body.dataId, null);
    assert.match(nothing.body.description, /no_such_variable/);
    await assert.rejects(adapter.customRequest('ulpf/watch', { text: 'a if' }), /if is not followed by/);
    await assert.rejects(adapter.customRequest('ulpf/unwatch', { number: 99 }), /99/);
    await assert.rejects(adapter.customRequest('ulpf/nonsense'), /There is no request/);
    assert.deepEqual((await adapter.customRequest('ulpf/watches')).body.watches, []);
  } finally {
    await adapter.stop();
  }
});
