import { useLingui } from '@lingui/react/macro';
import type { CardKind } from './dashboard';

/** Kinds of cards with their names, in the order in which they are offered. */
export function useCardKindNames(): Record<CardKind, string> {
  const { t } = useLingui();
  return {
    statistic: t`One value`,
    gauge: t`Gauge`,
    chart: t`Chart over time`,
    status: t`States of devices, or alarms`,
    table: t`Table of values`,
    map: t`Positions`,
    text: t`Text`,
    control: t`Control that sends a command`,
    live_messages: t`Messages of a topic`,
  };
}
