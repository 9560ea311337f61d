// SPDX-License-Identifier: MIT OR Apache-2.0
/** The processes of this machine, out of /proc. */
import { promises as fs } from 'node:fs';
import * as path from 'node:path';

export interface Process {
  pid: number;
  name: string;
  command: string;
  user: number;
}

/** Processes that may be debugged, the newest first: the user's (all, for root), without kernel threads. */
export async function processes(root = '/proc', user = process.getuid?.() ?? 0): Promise<Process[]> {
  const found: Process[] = [];
  const entries = await fs.readdir(root);
  await Promise.all(entries.filter(e => /^\d+$/.test(e)).map(async entry => {
    const dir = path.join(root, entry);
    try {
      const [line, name, status] = await Promise.all(
        ['cmdline', 'comm', 'status'].map(f => fs.readFile(path.join(dir, f), 'utf8')));
      const owner = Number(/^Uid:\s+(\d+)/m.exec(status)?.[1] ?? -1);
      // Without a command line: the kernel's own, or a zombie.
      if (line && (user === 0 || owner === user) && Number(entry) !== process.pid) {
        const command = line.replace(/\0+$/, '').replaceAll('\0', ' ');
        found.push({ pid: Number(entry), name: name.trim(), command, user: owner });
      }
    } catch {
      // It has ended meanwhile.
    }
  }));
  return found.sort((a, b) => b.pid - a.pid);
}
