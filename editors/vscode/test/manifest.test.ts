// SPDX-License-Identifier: MIT OR Apache-2.0
/** package.json against the code and the documentation that it has to agree with. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import * as path from 'node:path';
import { test } from 'node:test';
import { ROOT } from './adapter';

const manifest = JSON.parse(readFileSync(path.join(ROOT, 'editors/vscode/package.json'), 'utf8'));
const { contributes } = manifest;
const declared: string[] = contributes.commands.map((c: { command: string }) => c.command);

test('every command is there, and every menu names one', () => {
  const source = readFileSync(path.join(ROOT, 'editors/vscode/src/commands.ts'), 'utf8');
  const registered = [...source.matchAll(/register\('(\w+)'/g)].map(m => `ulpf.${m[1]}`);
  assert.deepEqual(registered.sort(), [...declared].sort());
  for (const [menu, entries] of Object.entries<{ command: string }[]>(contributes.menus)) {
    for (const entry of entries) {
      assert.ok(declared.includes(entry.command), `${menu}: ${entry.command}`);
    }
  }
});

test('every field of a configuration is one that the adapter takes', () => {
  const documentation = readFileSync(path.join(ROOT, 'docs/dap.md'), 'utf8');
  const adapter = readFileSync(path.join(ROOT, 'command/dap/src/protocol.rs'), 'utf8');
  const [debuggers] = contributes.debuggers;
  for (const request of ['launch', 'attach']) {
    for (const name of Object.keys(debuggers.configurationAttributes[request].properties)) {
      assert.ok(documentation.includes(`\`${name}\``), `docs/dap.md does not explain ${name}`);
      const rust = name.replace(/[A-Z]/g, c => `_${c.toLowerCase()}`);
      assert.match(adapter, new RegExp(`pub (${name}|${rust}):`), `${request}: ${name}`);
    }
  }
});
