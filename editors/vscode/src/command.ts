// SPDX-License-Identifier: MIT OR Apache-2.0
/** Where the `ulpf` command is. */
import { accessSync, constants, statSync } from 'node:fs';
import * as path from 'node:path';

function runs(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return statSync(file).isFile();
  } catch {
    return false;
  }
}

/** The path of `name`, or undefined. A name without a slash is looked up in `search`. */
export function find(name: string, search = process.env.PATH ?? ''): string | undefined {
  if (name.includes('/')) {
    return runs(name) ? name : undefined;
  }
  return search.split(path.delimiter).filter(Boolean).map(dir => path.join(dir, name)).find(runs);
}

/** Why there is no adapter, and what to do. */
export function missing(name: string): string {
  return name.includes('/')
    ? `${name} is no program. Set "ulpf.path" to where ulpf is.`
    : `There is no ${name} in PATH. Install ulpf, or set "ulpf.path" to where it is.`;
}
