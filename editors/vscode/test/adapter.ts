// SPDX-License-Identifier: MIT OR Apache-2.0
/** The real `ulpf dap`, driven by VS Code's own test client. */
import { DebugClient } from '@vscode/debugadapter-testsupport';
import { existsSync } from 'node:fs';
import * as path from 'node:path';

/** The repository. */
export const ROOT = path.resolve(__dirname, '../../../..');
export const ULPF = process.env.ULPF ?? path.join(ROOT, 'target/release/ulpf');

export function example(name: string): string {
  return path.join(ROOT, 'tests/programs/bin', name);
}

/** Why nothing can be debugged here, or false. */
export function unable(): string | false {
  const needed = [ULPF, example('five')].find(file => !existsSync(file));
  return needed ? `${needed} is not there: make test builds it` : false;
}

/** A session with a process of its own. */
export class Adapter extends DebugClient {
  constructor() {
    super(ULPF, 'dap', 'ulpf');
    this.defaultTimeout = 60_000;
  }
}
