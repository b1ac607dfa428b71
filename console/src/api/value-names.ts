/** Names of kinds of nodes and actions, and of outcomes, which the API writes as identifiers. */

import type { MessageDescriptor } from '@lingui/core';
import { i18n } from '@lingui/core';
import { msg } from '@lingui/core/macro';

export const nodeTypes: Record<string, MessageDescriptor> = {
  validate: msg`validate`,
  filter: msg`filter`,
  transform: msg`transform`,
  save_telemetry: msg`save telemetry`,
  alarm: msg`alarm`,
  log: msg`log`,
  republish: msg`republish`,
  sink: msg`sink`,
};

const nodeTypeTexts: Record<string, MessageDescriptor> = {
  validate: msg`does nothing: values are validated against the thing model before a chain starts`,
  filter: msg`continues with true or false`,
  transform: msg`replaces the row by the columns of a SELECT`,
  save_telemetry: msg`stores the row as telemetry of the device`,
  alarm: msg`evaluates the alarm rules of the product`,
  log: msg`writes a line with placeholders to the log of the node`,
  republish: msg`publishes a message`,
  sink: msg`passes the row to a sink`,
};

export const outcomes: Record<string, MessageDescriptor> = {
  success: msg`success`,
  failure: msg`failure`,
  true: msg`true`,
  false: msg`false`,
};

export const actionKinds: Record<string, MessageDescriptor> = {
  republish: msg`republish`,
  console: msg`console`,
  sink: msg`sink`,
  telemetry: msg`telemetry`,
  alarm: msg`alarm`,
  relay: msg`relay`,
};

const actionTexts: Record<string, MessageDescriptor> = {
  republish: msg`publishes a message`,
  console: msg`writes the output to the node's log`,
  sink: msg`passes the output to a database, queue, web server or file`,
  telemetry: msg`stores the output as values of a device`,
  alarm: msg`raises or clears an alarm of a device`,
  relay: msg`sends the output to the connections of a relay endpoint`,
};

const nameIn = (names: Record<string, MessageDescriptor>, value: string) => {
  const known = Object.hasOwn(names, value) ? names[value] : undefined;
  // A newer node may know more.
  return known ? i18n._(known) : value.replaceAll('_', ' ');
};

/** The name of a type of node of rule chains. */
export const nodeTypeName = (type: string) => nameIn(nodeTypes, type);

/** What a node of a type does; `undefined`: this console does not know the type. */
export function nodeTypeText(type: string): string | undefined {
  const known = Object.hasOwn(nodeTypeTexts, type) ? nodeTypeTexts[type] : undefined;
  return known && i18n._(known);
}

export const outcomeName = (outcome: string) => nameIn(outcomes, outcome);

/** The name of a kind of action of rules. */
export const actionKindName = (kind: string) => nameIn(actionKinds, kind);

export function actionKindText(kind: string): string | undefined {
  const known = Object.hasOwn(actionTexts, kind) ? actionTexts[kind] : undefined;
  return known && i18n._(known);
}
