import { Trans, useLingui } from '@lingui/react/macro';
import { useRead, type Page, type Schemas } from '../../api/client';
import { objectPath, send, withQuery } from '../../api/objects';
import { formatNumber, formatTick } from '../../format';
import { Chart } from '../../ui/chart';
import { DataTable, type Column } from '../../ui/data-table';
import { Panel } from '../../ui/page';
import { SpanSelect, useSpan } from '../../ui/span-select';
import { EmptyState, ErrorState, Loading } from '../../ui/states';
import { groupsPath } from './group-kind';

type Interval = Schemas['KeyInterval'];

interface Numbers {
  avg?: number | null;
  min?: number | null;
  max?: number | null;
  count?: number | null;
}

const functions = 'avg,min,max,count';
const points = 200;
const maxCharts = 8;
const maxKeys = 64;
/** Members of which the keys are read; those of a group report much the same. */
const sampledMembers = 8;
const refreshMs = 30_000;

const numbersOf = (interval: Interval) => interval.values as Numbers;
const shown = (value: number | null | undefined) => (value == null ? '–' : formatNumber(value, 3));

/** Keys with numbers that some members have reported. */
async function numericKeys(id: string, signal: AbortSignal): Promise<string[]> {
  const members = await send<Page<Schemas['Device']>>(
    'GET',
    withQuery(`${objectPath(groupsPath, id)}/devices`, { limit: sampledMembers }),
    { signal },
  );
  const latest = await Promise.all(
    members.data.map((device) =>
      send<Schemas['LatestValues']>('GET', `/api/v1/devices/${encodeURIComponent(device.id)}/telemetry/latest`, {
        signal,
      }),
    ),
  );
  const keys = latest.flatMap(({ values }) =>
    Object.entries(values as Record<string, { value: unknown }>)
      .filter(([, { value }]) => typeof value === 'number')
      .map(([key]) => key),
  );
  return [...new Set(keys)].sort().slice(0, maxKeys);
}

/** The values of all members together: as numbers and over time. */
export function GroupValues({ id }: { id: string }) {
  const { t } = useLingui();
  const { span, spanMs, setSpan } = useSpan('24h');
  const path = `${objectPath(groupsPath, id)}/telemetry/intervals`;
  const found = useRead([groupsPath, 'keys', id], (signal) => numericKeys(id, signal));
  const keys = found.data?.join(',') ?? '';
  const read = (intervalMs?: number) => async (signal: AbortSignal) => {
    const to = Date.now();
    const query = { keys, merged: true, functions, from_ms: to - spanMs, to_ms: to, interval_ms: intervalMs };
    return (await send<Schemas['IntervalList']>('GET', withQuery(path, query), { signal })).data;
  };
  const options = { every: refreshMs, enabled: keys !== '' };
  const totals = useRead([groupsPath, 'totals', id, span, keys], read(), options);
  const lines = useRead([groupsPath, 'lines', id, span, keys], read(Math.ceil(spanMs / points)), options);
  const columns: Column<Interval>[] = [
    { id: 'key', header: t`Key`, sort: (row) => row.key, cell: (row) => <span className="mono">{row.key}</span> },
    { id: 'avg', header: t`Mean`, align: 'right', cell: (row) => shown(numbersOf(row).avg) },
    { id: 'min', header: t`Minimum`, align: 'right', cell: (row) => shown(numbersOf(row).min) },
    { id: 'max', header: t`Maximum`, align: 'right', cell: (row) => shown(numbersOf(row).max) },
    {
      id: 'count',
      header: t`Values`,
      align: 'right',
      sort: (row) => numbersOf(row).count,
      cell: (row) => shown(numbersOf(row).count),
    },
  ];
  const byKey = new Map<string, Interval[]>();
  for (const interval of lines.data ?? []) {
    if (numbersOf(interval).avg == null) continue;
    byKey.set(interval.key, [...(byKey.get(interval.key) ?? []), interval]);
  }
  const error = found.error ?? totals.error;
  if (error && !totals.data) {
    return (
      <div className="panel">
        <ErrorState error={error} retry={() => void (found.error ? found : totals).refetch()} />
      </div>
    );
  }
  return (
    <div className="page">
      <DataTable
        name="group-values"
        label={t`Values`}
        columns={columns}
        rows={found.data?.length === 0 ? [] : totals.data}
        rowKey={(row) => row.key}
        toolbar={<SpanSelect value={span} onChange={setSpan} />}
        empty={
          <EmptyState title={<Trans>No values in this time</Trans>}>
            <Trans>The numbers of all members together appear here, key by key.</Trans>
          </EmptyState>
        }
      />
      {keys !== '' && lines.data === undefined && !lines.error ? (
        <Loading />
      ) : (
        <div className="grid">
          {[...byKey].slice(0, maxCharts).map(([key, intervals]) => (
            <Panel key={key} title={key}>
              <Chart
                label={t`${key} over time`}
                times={intervals.map(({ ts_ms }) => ts_ms)}
                syncKey={`group-${id}`}
                format={(value) => formatNumber(value, 3)}
                tick={formatTick}
                series={[
                  { label: t`mean`, values: intervals.map((each) => numbersOf(each).avg ?? null) },
                  { label: t`minimum`, values: intervals.map((each) => numbersOf(each).min ?? null), colour: 4 },
                  { label: t`maximum`, values: intervals.map((each) => numbersOf(each).max ?? null), colour: 3 },
                ]}
              />
            </Panel>
          ))}
        </div>
      )}
    </div>
  );
}
