// SPDX-License-Identifier: MIT OR Apache-2.0
/** Joins VS Code's debugger and `ulpf dap` (docs/dap.md), and shows what is watched. */
import * as vscode from 'vscode';
import { find, missing } from './command';
import { commands } from './commands';
import { Watches } from './watches';

export function activate(context: vscode.ExtensionContext): void {
  const watches = new Watches();
  const view = vscode.window.createTreeView('ulpf.watches', { treeDataProvider: watches });
  context.subscriptions.push(
    watches,
    view,
    view.onDidChangeVisibility(e => watches.show(e.visible)),
    vscode.debug.registerDebugAdapterDescriptorFactory('ulpf', { createDebugAdapterDescriptor: adapter }),
    vscode.debug.registerDebugConfigurationProvider('ulpf', { resolveDebugConfiguration: complete }),
    vscode.debug.onDidChangeActiveDebugSession(() => watches.sessionChanged()),
    // Counts are to be right whenever the program rests.
    vscode.debug.registerDebugAdapterTrackerFactory('ulpf', {
      createDebugAdapterTracker: () => ({
        onDidSendMessage: (message: { type: string; event?: string; command?: string }) => {
          if (message.event === 'stopped' || message.command === 'setDataBreakpoints') {
            setTimeout(() => void watches.refresh(), 50);
          }
        },
      }),
    }),
    ...commands(watches),
  );
}

/** `ulpf dap`; VS Code itself sees to "debugServer". */
function adapter(): vscode.DebugAdapterDescriptor {
  const name = vscode.workspace.getConfiguration('ulpf').get<string>('path') || 'ulpf';
  const path = find(name);
  if (!path) {
    throw new Error(missing(name));
  }
  return new vscode.DebugAdapterExecutable(path, ['dap']);
}

/** F5 without a launch.json. */
async function complete(
  folder: vscode.WorkspaceFolder | undefined, given: vscode.DebugConfiguration,
): Promise<vscode.DebugConfiguration | null | undefined> {
  if (given.type || given.request) {
    return given;
  }
  const chosen = await vscode.window.showOpenDialog({
    title: 'Debug which program?', openLabel: 'Debug', defaultUri: folder?.uri,
  });
  return chosen?.[0] && {
    type: 'ulpf', request: 'launch', name: 'Debug with ulpf', program: chosen[0].fsPath, cwd: folder?.uri.fsPath,
  };
}
