/** The last messages of a subscription, bounded in number and bytes; readers are notified a few times per second. */

import type { LiveMessage } from '../../api/mqtt';

export const maxMessages = 2_000;
export const maxBytes = 16 * 1024 * 1024;
const notifyMs = 100;

export interface BufferState {
  /** Newest first. */
  messages: readonly LiveMessage[];
  received: number;
  /** Received, but no longer in the buffer. */
  removed: number;
  isPaused: boolean;
  /** Received while paused. */
  waiting: number;
}

export class MessageBuffer {
  private kept: LiveMessage[] = [];
  private bytes = 0;
  private received = 0;
  private shownReceived = 0;
  private isPaused = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private state: BufferState = { messages: [], received: 0, removed: 0, isPaused: false, waiting: 0 };
  private readonly listeners = new Set<() => void>();

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly snapshot = (): BufferState => this.state;

  add(message: Omit<LiveMessage, 'id'>): void {
    this.received += 1;
    this.kept.push({ ...message, id: this.received });
    this.bytes += size(message);
    let surplus = 0;
    while (this.kept.length - surplus > maxMessages || (this.bytes > maxBytes && this.kept.length - surplus > 1)) {
      const oldest = this.kept[surplus];
      if (oldest) this.bytes -= size(oldest);
      surplus += 1;
    }
    if (surplus > 0) this.kept.splice(0, surplus);
    this.timer ??= setTimeout(() => this.publish(), notifyMs);
  }

  setPaused(isPaused: boolean): void {
    this.isPaused = isPaused;
    this.publish();
  }

  clear(): void {
    this.kept = [];
    this.bytes = 0;
    this.received = 0;
    this.shownReceived = 0;
    this.state = { ...this.state, messages: [] };
    this.publish();
  }

  private publish(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    const messages = this.isPaused ? this.state.messages : [...this.kept].reverse();
    if (!this.isPaused) this.shownReceived = this.received;
    this.state = {
      messages,
      received: this.received,
      removed: this.received - this.kept.length,
      isPaused: this.isPaused,
      waiting: this.received - this.shownReceived,
    };
    this.listeners.forEach((listener) => listener());
  }
}

function size(message: Omit<LiveMessage, 'id'>): number {
  return message.topic.length + message.payload.length;
}

/** One line of JSON for each message, oldest first. */
export function asJsonLines(messages: readonly LiveMessage[], text: (payload: Uint8Array) => string | null): string {
  return [...messages]
    .reverse()
    .map(({ atMs, topic, qos, retain, payload }) => {
      const content = text(payload);
      const shown =
        content === null
          ? { payload_base64: btoa(Array.from(payload, (byte) => String.fromCharCode(byte)).join('')) }
          : { payload: content };
      return `${JSON.stringify({ at: new Date(atMs).toISOString(), topic, qos, retain, ...shown })}\n`;
    })
    .join('');
}
