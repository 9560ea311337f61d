// SPDX-License-Identifier: MIT OR Apache-2.0
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { test } from 'node:test';
import { find, missing } from '../src/command';
import { processes } from '../src/processes';

test('processes: what runs, without the kernel\'s own and ourselves', async () => {
  const child = spawn('sleep', ['61.5']);
  try {
    await new Promise(resolve => child.once('spawn', resolve));
    // Between fork and exec it still has our command line.
    let mine;
    for (let round = 0; round < 100 && mine?.name !== 'sleep'; round++) {
      mine = (await processes()).find(p => p.pid === child.pid);
    }
    assert.equal(mine?.command, 'sleep 61.5');
    const all = await processes();
    assert.ok(!all.some(p => p.pid === process.pid));
    assert.ok(!all.some(p => p.name === 'kthreadd'));
    // No user has this ID.
    assert.deepEqual(await processes('/proc', 4000000000), []);
  } finally {
    child.kill();
  }
});

test('the command: a path, or a name in PATH', () => {
  assert.equal(find('sh', '/nonexistent:/bin'), '/bin/sh');
  assert.equal(find('/bin/sh'), '/bin/sh');
  assert.equal(find('/etc/passwd'), undefined);
  assert.equal(find('/etc'), undefined);
  assert.equal(find('no-such-command'), undefined);
  assert.match(missing('ulpf'), /in PATH\. Install ulpf, or set "ulpf\.path"/);
  assert.match(missing('/x/ulpf'), /is no program/);
});
