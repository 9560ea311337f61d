// SPDX-License-Identifier: MIT OR Apache-2.0
/** The view "Data Watches": what is watched, with counts, also while the program runs. */
import * as vscode from 'vscode';
import { Watch, description, details, spoken } from './text';

export class Watches implements vscode.TreeDataProvider<Watch>, vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<void>();
  readonly onDidChangeTreeData = this.changed.event;
  private watches: Watch[] = [];
  private timer: NodeJS.Timeout | undefined;
  private asking = false;
  private visible = false;

  /** Called when the view opens or closes. Counts are read only while it is open. */
  show(visible: boolean): void {
    this.visible = visible;
    this.schedule();
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.changed.dispose();
  }

  async refresh(): Promise<void> {
    if (this.asking) {
      return;
    }
    const session = ulpfSession();
    let watches: Watch[] = [];
    this.asking = true;
    try {
      if (session) {
        watches = (await session.customRequest('ulpf/watches')).watches ?? [];
      }
    } catch {
      // The session is beginning or ending; its adapter tells the user what is wrong.
    } finally {
      this.asking = false;
    }
    if (JSON.stringify(watches) !== JSON.stringify(this.watches)) {
      this.watches = watches;
      this.changed.fire();
    }
  }

  private schedule(): void {
    clearTimeout(this.timer);
    if (!this.visible || !ulpfSession()) {
      void this.refresh();
      return;
    }
    const pause = vscode.workspace.getConfiguration('ulpf').get<number>('refreshInterval', 1000);
    this.timer = setTimeout(() => void this.refresh().finally(() => this.schedule()), Math.max(100, pause));
  }

  sessionChanged(): void {
    void this.refresh();
    this.schedule();
  }

  getChildren(parent?: Watch): Watch[] {
    return parent ? [] : this.watches;
  }

  getTreeItem(watch: Watch): vscode.TreeItem {
    const item = new vscode.TreeItem(watch.name);
    item.id = String(watch.number);
    item.description = description(watch);
    item.contextValue = watch.address ? 'placed' : 'unplaced';
    item.accessibilityInformation = { label: spoken(watch) };
    item.iconPath = new vscode.ThemeIcon(
      watch.ended ? 'circle-slash' : watch.log ? 'output' : watch.enabled ? 'debug-breakpoint-data' : 'debug-breakpoint-data-disabled');
    const tip = new vscode.MarkdownString();
    tip.appendMarkdown('| | |\n|---|---|\n');
    for (const [name, value] of details(watch)) {
      tip.appendMarkdown(`| ${name} | `);
      tip.appendText(value);
      tip.appendMarkdown(' |\n');
    }
    item.tooltip = tip;
    return item;
  }
}

export function ulpfSession(): vscode.DebugSession | undefined {
  const session = vscode.debug.activeDebugSession;
  return session?.type === 'ulpf' ? session : undefined;
}
