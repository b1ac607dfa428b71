import { useLingui } from '@lingui/react/macro';
import { formatNumber } from '../format';
import type { Column } from './data-table';
import { Ago } from './time';

/** Columns of events that are counted when they repeat: how often, and when the last time. */
export function useRepetitionColumns<T extends { count: number; at_ms: number }>(): Column<T>[] {
  const { t } = useLingui();
  return [
    {
      id: 'count',
      header: t`Times`,
      align: 'right',
      sort: (row) => row.count,
      cell: (row) => formatNumber(row.count),
    },
    { id: 'last', header: t`Last`, sort: (row) => row.at_ms, cell: (row) => <Ago ms={row.at_ms} /> },
  ];
}
