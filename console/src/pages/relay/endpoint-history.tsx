import { Button, Menu, MultiSelect, Select, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconDownload } from '@tabler/icons-react';
import { useMemo } from 'react';
import { Link } from 'wouter';
import { api, unwrap, useRead } from '../../api/client';
import { withQuery } from '../../api/objects';
import { formatNumber, formatTick, formatTime } from '../../format';
import { Chart } from '../../ui/chart';
import { DataTable, type Column } from '../../ui/data-table';
import { download } from '../../ui/download';
import { TimeField } from '../../ui/field-inputs';
import { Panel } from '../../ui/page';
import { spanMsOf, SpanSelect } from '../../ui/span-select';
import { EmptyState, ErrorState, Loading } from '../../ui/states';
import { useUrlState } from '../../ui/url-state';
import { aligned } from '../telemetry/series';
import type { RelayEndpoint } from './endpoint-address';
import { useEndpointDevices } from './endpoint-devices';
import { keysOf, linesOfRows, rowsAsCsv, rowsOf, type HistoryRow } from './history-rows';

const intervalsMs: Record<string, number> = { minute: 60_000, hour: 3_600_000, day: 86_400_000 };
const refreshMs = 10_000;
/** Of values without intervals; the node returns the newest. */
const maxRows = 1_000;
/** Intervals that the table and the chart show at most: those of a week by minutes fit. */
const maxIntervals = 11_000;

interface History {
  rows: HistoryRow[];
  isTruncated: boolean;
  range: [number, number];
}

/** What the devices of the endpoint reported. */
export function EndpointHistory({ endpoint }: { endpoint: RelayEndpoint }) {
  const devices = useEndpointDevices(endpoint);
  const [chosen, setChosen] = useUrlState('device');
  if (devices.error && !devices.rows) return <ErrorState error={devices.error} />;
  if (!devices.rows) return <Loading />;
  const device = devices.rows.find(({ id }) => id === chosen) ?? devices.rows[0];
  if (!device) {
    return (
      <div className="panel">
        <EmptyState title={<Trans>No data yet</Trans>}>
          <Trans>Values of devices are stored. A connection becomes a device when it sends an identify message.</Trans>
        </EmptyState>
      </div>
    );
  }
  return (
    <DeviceHistory
      device={device.id}
      devices={devices.rows.map(({ id, name }) => ({ value: id, label: name || id }))}
      onChoose={setChosen}
    />
  );
}

function DeviceHistory({
  device,
  devices,
  onChoose,
}: {
  device: string;
  devices: { value: string; label: string }[];
  onChoose: (device: string) => void;
}) {
  const { t } = useLingui();
  const [range, setRange] = useUrlState('range', '1h');
  const [from, setFrom] = useUrlState('from');
  const [to, setTo] = useUrlState('to');
  const [interval, setInterval] = useUrlState('interval', 'none');
  const [keysText, setKeys] = useUrlState('keys');
  const isFixed = range === 'fixed';
  const intervalMs = intervalsMs[interval];
  const rangeNow = (): [number, number] =>
    isFixed ? [Number(from), Number(to)] : [Date.now() - spanMsOf(range), Date.now()];
  const isPossible = !isFixed || Number(from) < Number(to);
  const isTooFine = intervalMs !== undefined && (rangeNow()[1] - rangeNow()[0]) / intervalMs > maxIntervals;
  const latest = useRead(['devices', 'latest', device], (signal) =>
    unwrap(api.GET('/api/v1/devices/{id}/telemetry/latest', { params: { path: { id: device } }, signal })),
  );
  const known = Object.keys(latest.data?.values ?? {}).sort();
  const chosen = keysText === '' ? known : keysText.split(',');
  const history = useRead<History>(
    ['devices', 'history', device, chosen.join(','), range, from, to, interval],
    async (signal) => {
      const [from_ms, to_ms] = rangeNow();
      const path = { id: device };
      const query = { keys: chosen.join(','), from_ms: Math.floor(from_ms), to_ms: Math.ceil(to_ms) };
      if (intervalMs === undefined) {
        const answer = await unwrap(
          api.GET('/api/v1/devices/{id}/telemetry', {
            params: { path, query: { ...query, rows: maxRows, order: 'desc' } },
            signal,
          }),
        );
        const rows = [...answer.rows].sort((a, b) => a.ts_ms - b.ts_ms);
        return { rows, isTruncated: answer.is_truncated, range: [from_ms, to_ms] };
      }
      const functions = 'avg,last';
      const answer = await unwrap(
        api.GET('/api/v1/devices/{id}/telemetry/intervals', {
          params: { path, query: { ...query, interval_ms: intervalMs, functions } },
          signal,
        }),
      );
      return { rows: rowsOf(answer.data), isTruncated: false, range: [from_ms, to_ms] };
    },
    { enabled: chosen.length > 0 && isPossible && !isTooFine, keep: true, ...(isFixed ? {} : { every: refreshMs }) },
  );
  const chooseRange = (next: string) => {
    if (next === 'fixed' && from === '') {
      const [first, last] = rangeNow();
      setFrom(String(first));
      setTo(String(last));
    }
    setRange(next);
  };
  const time = (label: string, value: string, set: (value: string) => void) => (
    <TimeField
      label={label}
      required
      disabled={false}
      value={Number(value)}
      empty={undefined}
      error={isPossible ? undefined : t`The end is before the start`}
      onChange={(next) => next !== undefined && set(String(next))}
    />
  );
  return (
    <div className="page">
      <section className="panel">
        <div className="panel-body row wrap history-controls">
          <Select
            label={t`Device`}
            searchable
            allowDeselect={false}
            data={devices}
            value={device}
            onChange={(next) => onChoose(next ?? '')}
          />
          <MultiSelect
            label={t`Keys`}
            placeholder={keysText === '' ? t`all` : undefined}
            searchable
            clearable
            data={[...new Set([...known, ...(keysText === '' ? [] : chosen)])]}
            value={keysText === '' ? [] : chosen}
            onChange={(next) => setKeys(next.join(','))}
          />
          <Select
            label={t`Mean per`}
            allowDeselect={false}
            value={interval}
            onChange={(next) => setInterval(next ?? 'none')}
            data={[
              { value: 'none', label: t`none: every value` },
              { value: 'minute', label: t`minute` },
              { value: 'hour', label: t`hour` },
              { value: 'day', label: t`day` },
            ]}
          />
        </div>
        <div className="table-toolbar wrap">
          <SpanSelect value={range} onChange={chooseRange} others={[{ value: 'fixed', label: t`Other` }]} />
          {isFixed && (
            <>
              {time(t`From`, from, setFrom)}
              {time(t`To`, to, setTo)}
            </>
          )}
          <div className="row wrap table-actions">
            <Link href={withQuery('/telemetry', { devices: device, keys: keysText })} className="link">
              <Trans>Compare in the telemetry page</Trans>
            </Link>
            <ExportMenu device={device} rows={history.data?.rows ?? []} />
          </div>
        </div>
      </section>
      {isTooFine ? (
        <Text size="sm" c="var(--tg-warning)">
          <Trans>The time range has too many intervals of this length. Choose a longer one.</Trans>
        </Text>
      ) : history.error && !history.data ? (
        <ErrorState error={history.error} retry={() => void history.refetch()} />
      ) : history.data ? (
        <Values device={device} history={history.data} />
      ) : latest.data && known.length === 0 ? (
        <div className="panel">
          <EmptyState title={<Trans>No values yet</Trans>}>
            <Trans>The values appear here as soon as the device reports them.</Trans>
          </EmptyState>
        </div>
      ) : (
        <Loading />
      )}
    </div>
  );
}

function Values({ device, history }: { device: string; history: History }) {
  const { t } = useLingui();
  const { rows, range } = history;
  const chart = useMemo(() => {
    const lines = linesOfRows(device, rows);
    const { times, values } = aligned(lines);
    return { times, series: lines.map(({ key }, index) => ({ label: key, values: values[index] ?? [] })) };
  }, [device, rows]);
  const newestFirst = useMemo(() => [...rows].reverse(), [rows]);
  const columns: Column<HistoryRow>[] = [
    { id: 'time', header: t`Time`, sort: (row) => row.ts_ms, cell: (row) => formatTime(row.ts_ms) },
    ...keysOf(rows).map((key): Column<HistoryRow> => ({
      id: key,
      header: key,
      align: 'right',
      cell: (row) => shown(row.values[key]),
    })),
  ];
  return (
    <>
      {chart.series.length > 0 && (
        <Panel>
          <Chart
            label={t`Values over time`}
            height={260}
            times={chart.times}
            range={range}
            isAutoScaled
            format={(value) => formatNumber(value, 3)}
            tick={formatTick}
            series={chart.series}
          />
        </Panel>
      )}
      {history.isTruncated && (
        <Text size="sm" c="dimmed">
          <Trans>
            Only the newest {formatNumber(rows.length)} times are shown. Choose a mean or a shorter time for all.
          </Trans>
        </Text>
      )}
      <DataTable
        name="endpoint-history"
        label={t`Values`}
        columns={columns}
        rows={newestFirst}
        rowKey={(row) => String(row.ts_ms)}
        empty={
          <EmptyState title={<Trans>No values in this time</Trans>}>
            <Trans>Choose another time range.</Trans>
          </EmptyState>
        }
      />
    </>
  );
}

function shown(value: unknown): string {
  if (value === undefined) return '–';
  if (typeof value === 'number') return formatNumber(value, 3);
  return typeof value === 'string' ? value : JSON.stringify(value);
}

/** Files of the rows that the page shows. */
function ExportMenu({ device, rows }: { device: string; rows: HistoryRow[] }) {
  return (
    <Menu>
      <Menu.Target>
        <Button variant="default" leftSection={<IconDownload size={14} />} disabled={rows.length === 0}>
          <Trans>Export</Trans>
        </Button>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Item onClick={() => download(`${device}.csv`, rowsAsCsv(rows), 'text/csv')}>CSV</Menu.Item>
        <Menu.Item onClick={() => download(`${device}.json`, JSON.stringify(rows, null, 2), 'application/json')}>
          JSON
        </Menu.Item>
      </Menu.Dropdown>
    </Menu>
  );
}
