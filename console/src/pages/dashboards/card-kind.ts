import { namedChoices } from '../../api/choice-names';
import type { CardKind } from './dashboard';

const kinds: readonly CardKind[] = [
  'statistic',
  'gauge',
  'chart',
  'status',
  'table',
  'map',
  'text',
  'control',
  'live_messages',
];

/** Kinds of cards with their names, in the order in which they are offered. */
export const cardKinds = () => namedChoices('kind', kinds);
