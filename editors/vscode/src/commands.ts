// SPDX-License-Identifier: MIT OR Apache-2.0
/** What the user can do with watches. */
import * as vscode from 'vscode';
import { Kind, Watch, expressionIn, kindName, objection, watchText } from './text';
import { processes } from './processes';
import { Watches, ulpfSession } from './watches';

/** Argument that VS Code passes to a command in the menu of a variable. */
interface Variable {
  variable: { name: string; evaluateName?: string };
}

export function commands(watches: Watches): vscode.Disposable[] {
  const register = (name: string, run: (...args: never[]) => unknown) =>
    vscode.commands.registerCommand(`ulpf.${name}`, async (...args) => {
      try {
        return await run(...args as never[]);
      } catch (e) {
        void vscode.window.showErrorMessage(e instanceof Error ? e.message : String(e));
        return undefined;
      }
    });
  return [
    register('watchRange', (what?: Variable) => watch(watches, what, false)),
    register('logWrites', (what?: Variable) => watch(watches, what, true)),
    register('lastWrites', (what?: Variable | Watch) => lastWrites(what)),
    register('unwatch', async (watch: Watch) => {
      await session().customRequest('ulpf/unwatch', { number: watch.number });
      await watches.refresh();
    }),
    register('copyAddress', (watch: Watch) => vscode.env.clipboard.writeText(watch.address ?? '')),
    register('refresh', () => watches.refresh()),
    register('pickProcess', pickProcess),
  ];
}

function session(): vscode.DebugSession {
  const session = ulpfSession();
  if (!session) {
    throw new Error('No program is debugged with ulpf. Start one first (F5).');
  }
  return session;
}

/** The selected stack frame, in which locals are resolved. */
function frame(): number | undefined {
  const item = vscode.debug.activeStackItem;
  return item instanceof vscode.DebugStackFrame ? item.frameId : undefined;
}

function pointedAt(what: Variable | undefined): string | undefined {
  if (what?.variable) {
    return what.variable.evaluateName ?? what.variable.name;
  }
  const editor = vscode.window.activeTextEditor;
  if (!editor) {
    return undefined;
  }
  const { selection, document } = editor;
  return selection.isEmpty
    ? expressionIn(document.lineAt(selection.active.line).text, selection.active.character)
    : document.getText(selection).trim() || undefined;
}

async function watch(watches: Watches, what: Variable | undefined, log: boolean): Promise<void> {
  const here = session();
  const expression = await vscode.window.showInputBox({
    title: log ? 'Log writes of' : 'Watch',
    prompt: 'A variable or range: total, arr[0..1024], *ptr@len, list->*next.refcount, map[*], heap, blocks struct node',
    value: pointedAt(what),
    validateInput: objection,
  });
  if (expression === undefined) {
    return;
  }
  let kind: Kind = 'w';
  if (!log) {
    const kinds: (vscode.QuickPickItem & { access: Kind })[] = [
      { label: 'Value change', description: 'stores that change it, also by the kernel', access: 'w' },
      { label: 'Read', description: 'a true read watch', access: 'r' },
      { label: 'Access', description: 'reads and writes', access: 'rw' },
    ];
    const chosen = await vscode.window.showQuickPick(kinds, { title: `Stop at each … of ${expression}` });
    if (!chosen) {
      return;
    }
    kind = chosen.access;
  }
  const condition = await vscode.window.showInputBox({
    title: `Condition for ${expression}`,
    prompt: 'Checked by the program\'s own threads, without a stop: $new > 900 && limit == 3. Empty: every hit.',
  });
  if (condition === undefined) {
    return;
  }
  const text = watchText({ expression, kind, log, condition });
  await here.customRequest('ulpf/watch', { text, frameId: frame() });
  await watches.refresh();
  const said = log ? 'Writes are logged to the debug console' : `Stops at each ${kindName(kind)}`;
  vscode.window.setStatusBarMessage(`${said}: ${expression}`, 5000);
}

/** Out of the rings, into the debug console. */
async function lastWrites(what?: Variable | Watch): Promise<void> {
  const here = session();
  const expression = what && 'number' in what
    ? what.address
    : pointedAt(what) ?? await vscode.window.showInputBox({ title: 'Who wrote this last?', validateInput: objection });
  if (!expression) {
    return;
  }
  const answer = await here.customRequest('evaluate', {
    expression: `ulpf last ${expression}`, context: 'repl', frameId: frame(),
  });
  vscode.debug.activeDebugConsole.appendLine(String(answer.result).trimEnd());
  await vscode.commands.executeCommand('workbench.debug.action.focusRepl');
}

async function pickProcess(): Promise<string | undefined> {
  const items = (await processes()).map(p => ({
    label: p.name, description: String(p.pid), detail: p.command, pid: p.pid,
  }));
  const chosen = await vscode.window.showQuickPick(items, {
    title: 'Attach to which process?', matchOnDescription: true, matchOnDetail: true,
  });
  return chosen && String(chosen.pid);
}
