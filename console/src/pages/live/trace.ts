/** Recorded messages with their steps, in the order in which the node received them. */

import type { Schemas } from '../../api/client';

export type TraceStep = Schemas['MessageTraceRow'];

export interface TracedMessage {
  id: string;
  topic: string;
  atMs: number;
  publisher: string | null;
  qos: number;
  steps: TraceStep[];
}

/** What became of a message, as counts of its steps. */
export interface TraceOutcome {
  isDenied: boolean;
  /** Why it was dropped for everybody. */
  dropped: string | null;
  sent: number;
  queued: number;
  droppedForSome: number;
  rules: string[];
}

/** The node keeps as many, see `GET /api/v1/message-recording`. */
export const maxSteps = 20_000;

/** The newest steps, without those that are in the list already. */
export function withSteps(steps: readonly TraceStep[], added: readonly TraceStep[]): TraceStep[] {
  const last = steps[steps.length - 1]?.number ?? 0;
  const fresh = added.filter(({ number }) => number > last);
  return fresh.length === 0 ? (steps as TraceStep[]) : [...steps, ...fresh].slice(-maxSteps);
}

/** The newest message first. */
export function messagesOf(steps: readonly TraceStep[]): TracedMessage[] {
  const messages = new Map<string, TracedMessage>();
  for (const step of steps) {
    const known = messages.get(step.message_id);
    if (known) {
      known.steps.push(step);
      continue;
    }
    const { message_id: id, topic, at_ms: atMs, publisher, qos } = step;
    messages.set(id, { id, topic, atMs, publisher, qos, steps: [step] });
  }
  return [...messages.values()].reverse();
}

export function outcomeOf({ steps }: TracedMessage): TraceOutcome {
  const outcome: TraceOutcome = {
    isDenied: false,
    dropped: null,
    sent: 0,
    queued: 0,
    droppedForSome: 0,
    rules: [],
  };
  for (const { step, subscriber, reason, rules } of steps) {
    if (step === 'denied') outcome.isDenied = true;
    else if (step === 'sent') outcome.sent += 1;
    else if (step === 'queued') outcome.queued += 1;
    else if (step === 'rules') outcome.rules.push(...rules);
    else if (step === 'dropped' && subscriber === null) outcome.dropped = reason ?? '';
    // "No local" is what the subscriber asked for.
    else if (step === 'dropped' && reason !== 'no_local') outcome.droppedForSome += 1;
  }
  return outcome;
}

/** Whether somebody did not get the message; one that only rules use has reached whom it was for. */
export function isProblem({ isDenied, dropped, droppedForSome, rules }: TraceOutcome): boolean {
  return isDenied || (dropped !== null && rules.length === 0) || droppedForSome > 0;
}
