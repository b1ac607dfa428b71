import { Button, NumberInput, Slider, Switch, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { useEffect, useMemo, useState, type ReactNode } from 'react';
import { Link } from 'wouter';
import { api, unwrap } from '../../api/client';
import { withQuery } from '../../api/objects';
import { openStream } from '../../api/stream';
import { formatNumber } from '../../format';
import { Chart, type Series } from '../../ui/chart';
import { MissingNodes } from '../../ui/missing-nodes';
import { StateBadge } from '../../ui/state-badge';
import { Ago, LiveTime } from '../../ui/time';
import { SeverityBadge } from '../alarms/severity';
import { DeviceStateBadge } from '../devices/device-state';
import { paramsOf } from '../devices/controls';
import { aligned, linesOf, type Line } from '../telemetry/series';
import {
  chartIntervalMs,
  useCardData,
  useDashboardContext,
  type CardData,
  type LatestOfDevice,
  type SourceData,
} from './card-data';
import { gaugeBands, stateOf, valuesOf, type CardValue } from './card-values';
import { rangeOf, type Card, type CardConfig, type LineStyle, type ValueState } from './dashboard';
import { showsSeveral } from './source-draft';
import { useStateNames } from './value-states';

/** The content of a card, live. */
export function CardView({ card }: { card: Card }) {
  const needsData = card.sources.length > 0 && card.kind !== 'control';
  const { data, error } = useCardData(card, needsData);
  if (card.kind === 'text') return <TextCard card={card} />;
  if (card.kind === 'control') return <ControlCard card={card} />;
  if (card.kind === 'live_messages') return <LiveMessages filter={card.config.topic_filter ?? ''} />;
  if (!needsData) {
    return (
      <Note>
        <Trans>This card has no data yet. Edit it to choose what it shows.</Trans>
      </Note>
    );
  }
  if (error && !data) return <Note>{error.message}</Note>;
  if (!data) return null;
  const problems = data.sources.flatMap((each) => (each.type === 'problem' ? [each.detail] : []));
  if (problems.length === data.sources.length) return <Note>{problems[0]}</Note>;
  const isTruncated =
    showsSeveral(card.kind) && data.sources.some((each) => 'is_truncated' in each && each.is_truncated);
  const isComplete = !hasMissingNodes(data);
  if (isComplete && !isTruncated && problems.length === 0) return contentOf(card, data);
  return (
    <div className="truncated-card">
      <div>{contentOf(card, data)}</div>
      {(isTruncated || problems.length > 0) && (
        <Text size="xs" c="dimmed">
          {isTruncated ? <Trans>There is more than the card can show.</Trans> : problems[0]}
        </Text>
      )}
      {!isComplete && <MissingValues nodes={data.missing_nodes} />}
    </div>
  );
}

const hasMissingNodes = ({ missing_nodes: nodes }: CardData) => nodes !== undefined && nodes.length > 0;

/** Says that values are missing. Whoever has a share link learns nothing of the nodes. */
function MissingValues({ nodes }: { nodes: string[] | undefined }) {
  const { source } = useDashboardContext();
  if (!source.isShared) return <MissingNodes nodes={nodes} />;
  return (
    <StateBadge health="warning">
      <Trans>Some values are missing now</Trans>
    </StateBadge>
  );
}

function contentOf(card: Card, data: CardData): ReactNode {
  switch (card.kind) {
    case 'statistic':
      return <Statistic card={card} data={data} />;
    case 'gauge':
      return <Gauge card={card} data={data} />;
    case 'chart':
      return <ChartCard card={card} data={data} />;
    case 'status':
      return <StatusCard card={card} data={data} />;
    case 'map':
      return <MapCard data={data} />;
    default:
      return <TableCard card={card} data={data} />;
  }
}

interface CardScrollerProps {
  label: string;
  className?: string;
  children: ReactNode;
}

/** Content that may be larger than its card; the keyboard scrolls it. It is no landmark, as its card is one with the same name. */
function CardScroller({ label, className = '', children }: CardScrollerProps) {
  return (
    <div className={`card-scroller ${className}`} tabIndex={0} role="group" aria-label={label}>
      {children}
    </div>
  );
}

function TextCard({ card }: { card: Card }) {
  const { t } = useLingui();
  return (
    <CardScroller className="card-text" label={card.title || t`Text`}>
      {card.config.text}
    </CardScroller>
  );
}

function Note({ children }: { children: React.ReactNode }) {
  return (
    <Text size="sm" c="dimmed" className="card-note">
      {children}
    </Text>
  );
}

function shown(value: unknown, { digits = 2, unit }: CardConfig): string {
  const text =
    typeof value === 'number' ? formatNumber(value, digits) : typeof value === 'string' ? value : JSON.stringify(value);
  return unit ? `${text} ${unit}` : text;
}

const nameOf = ({ subject, key }: CardValue) => [subject, key].filter((part) => part !== '').join(' · ');

const maxNumberChars = 24;

function Statistic({ card, data }: { card: Card; data: CardData }) {
  const [first] = valuesOf(card, data);
  if (!first) return <NoValue />;
  const text = shown(first.value, card.config);
  const state = stateOf(first.value, card.config.states);
  // Payloads such as JSON, which would not fit in the size of a number.
  const isLong = text.length > maxNumberChars;
  return (
    <div className="card-statistic">
      {isLong ? (
        <CardScroller className="card-payload mono" label={nameOf(first)}>
          {text}
        </CardScroller>
      ) : (
        <div className={`card-number ${state ? `state-${state.state}` : ''}`}>{text}</div>
      )}
      {state && <StateText state={state} />}
      <Text size="xs" c="dimmed">
        {nameOf(first)} · <Ago ms={first.tsMs} />
      </Text>
    </div>
  );
}

/** What the value means. */
function StateText({ state }: { state: ValueState }) {
  const names = useStateNames();
  return <StateBadge health={state.state}>{state.text ?? names[state.state]}</StateBadge>;
}

function NoValue() {
  return (
    <Note>
      <Trans>No value yet</Trans>
    </Note>
  );
}

const arcLength = Math.PI * 80;
const bandLength = Math.PI * 92;

function Gauge({ card, data }: { card: Card; data: CardData }) {
  const [first] = valuesOf(card, data);
  if (!first || typeof first.value !== 'number') return <NoValue />;
  const { min = 0, max = 100 } = card.config;
  const part = Math.min(1, Math.max(0, (first.value - min) / (max - min || 1)));
  const state = stateOf(first.value, card.config.states);
  return (
    <div className="card-gauge">
      <svg viewBox="0 0 200 120" role="img" aria-label={`${nameOf(first)}: ${shown(first.value, card.config)}`}>
        <path d="M20 105 A80 80 0 0 1 180 105" className="gauge-track" />
        <path
          d="M20 105 A80 80 0 0 1 180 105"
          className={`gauge-value ${state ? `gauge-${state.state}` : ''}`}
          strokeDasharray={`${part * arcLength} ${arcLength}`}
        />
        {gaugeBands(min, max, card.config.states).map(({ state: band, begin, end }) => (
          <path
            key={begin}
            d="M8 105 A92 92 0 0 1 192 105"
            className={`gauge-band gauge-${band}`}
            strokeDasharray={`0 ${begin * bandLength} ${(end - begin) * bandLength} ${bandLength}`}
          />
        ))}
        <text x="100" y="96" textAnchor="middle" className="gauge-text">
          {shown(first.value, card.config)}
        </text>
        <text x="20" y="118" textAnchor="middle" className="gauge-limit">
          {formatNumber(min)}
        </text>
        <text x="180" y="118" textAnchor="middle" className="gauge-limit">
          {formatNumber(max)}
        </text>
      </svg>
      <div className="row wrap centered">
        {state && <StateText state={state} />}
        <Text size="xs" c="dimmed">
          {nameOf(first)}
        </Text>
      </div>
    </div>
  );
}

function ChartCard({ card, data }: { card: Card; data: CardData }) {
  const { t } = useLingui();
  const { spanMs } = useDashboardContext();
  const { config } = card;
  const chart = useMemo(() => chartOf(data, config.lines), [config.lines, data]);
  const [from, to] = rangeOf(config, spanMs, data.at_ms);
  if (chart.series.length === 0) return <NoValue />;
  return (
    <Chart
      label={card.title || t`Chart`}
      height={Math.max(80, card.h * 44 - 130)}
      times={chart.times}
      range={[from, to]}
      {...(config.chart === 'bar' ? { barMs: chartIntervalMs(to - from, config) } : { isAutoScaled: true })}
      syncKey="dashboard"
      format={(value) => shown(value, config)}
      series={chart.series}
    />
  );
}

/** Lines of telemetry and of metrics of the node; the intervals of both begin at multiples of their length. */
function chartOf({ sources }: CardData, styles: readonly LineStyle[] = []): { times: number[]; series: Series[] } {
  const rows = sources.flatMap((each) => (each.type === 'telemetry' ? each.intervals : []));
  const lines = [...linesOf(rows, 'avg'), ...sources.flatMap(metricLines)];
  const { times, values } = aligned(lines);
  const series = lines.map(({ device, key }, index) => {
    const style = styles.find((each) => each.device === device && each.key === key);
    const hasOneKey = lines.every((line) => line.key === key);
    const name = device === null ? key : hasOneKey ? device : `${device} ${key}`;
    return { label: style?.label ?? name, colour: style?.colour, values: values[index] ?? [] };
  });
  return { times, series };
}

function metricLines(source: SourceData): Line[] {
  if (source.type !== 'node') return [];
  const { metrics, ts_ms: times } = source;
  const lines = metrics.map(({ name, avg }) => {
    const points = times.flatMap((time, index): [number, number][] => {
      const value = avg[index];
      return typeof value === 'number' ? [[time, value]] : [];
    });
    return { device: null, key: name, points: new Map(points) };
  });
  return lines.filter(({ points }) => points.size > 0);
}

/** A value, with its state if the card gives it one. */
function ShownValue({ value, config }: { value: unknown; config: CardConfig }) {
  const state = stateOf(value, config.states);
  const text = shown(value, config);
  return state ? <StateBadge health={state.state}>{state.text ?? text}</StateBadge> : <>{text}</>;
}

function StatusCard({ card, data }: { card: Card; data: CardData }) {
  const { t } = useLingui();
  const { source } = useDashboardContext();
  const devices = data.sources.flatMap((each) => (each.type === 'devices' ? each.devices : []));
  const alarms = data.sources.flatMap((each) => (each.type === 'alarms' ? each.alarms : []));
  const values = valuesOf(card, data);
  const hasOneKey = values.every(({ subject, key }) => subject !== '' && key === values[0]?.key);
  return (
    <CardScroller label={card.title || t`States`}>
      <ul className="card-list">
        {devices.map((each) => (
          <li key={each.device}>
            {source.isShared ? (
              <span className="grow">{each.name || each.device}</span>
            ) : (
              <Link href={`/devices/${encodeURIComponent(each.device)}`} className="link grow">
                {each.name || each.device}
              </Link>
            )}
            <DeviceStateBadge state={each.state} />
          </li>
        ))}
        {alarms.map((alarm, index) => {
          const { type, severity, deviceId } = alarm;
          return (
            <li key={index}>
              <span className="grow">
                {type} <span className="dimmed">{deviceId}</span>
              </span>
              <SeverityBadge severity={severity} />
            </li>
          );
        })}
        {values.map((each) => (
          <li key={each.id}>
            <span className="grow">{hasOneKey ? each.subject : nameOf(each)}</span>
            <ShownValue value={each.value} config={card.config} />
          </li>
        ))}
        {devices.length + alarms.length + values.length === 0 && (
          <li>
            <StateBadge health={hasMissingNodes(data) ? 'unknown' : 'good'}>
              <Trans>nothing to show</Trans>
            </StateBadge>
          </li>
        )}
      </ul>
    </CardScroller>
  );
}

function TableCard({ card, data }: { card: Card; data: CardData }) {
  const { t } = useLingui();
  const values = valuesOf(card, data);
  if (data.sources.every(({ type }) => type === 'devices' || type === 'alarms'))
    return <StatusCard card={card} data={data} />;
  if (values.length === 0) return <NoValue />;
  const topics = values.filter(({ key }) => key === '').length;
  const metrics = values.filter(({ subject }) => subject === '').length;
  const hasSubjects = metrics < values.length;
  const hasKeys = topics < values.length;
  return (
    <CardScroller label={card.title || t`Values`}>
      <table className="data-table">
        <thead>
          <tr>
            {hasSubjects && (
              <th scope="col">
                {topics === 0 ? (
                  <Trans>Device</Trans>
                ) : topics + metrics === values.length ? (
                  <Trans>Topic</Trans>
                ) : (
                  <Trans>Device or topic</Trans>
                )}
              </th>
            )}
            {hasKeys && (
              <th scope="col">
                {metrics === 0 ? (
                  <Trans>Key</Trans>
                ) : topics + metrics === values.length ? (
                  <Trans>Metric</Trans>
                ) : (
                  <Trans>Key or metric</Trans>
                )}
              </th>
            )}
            <th scope="col" className="right">
              <Trans>Value</Trans>
            </th>
            <th scope="col" className="right">
              <Trans>Time</Trans>
            </th>
          </tr>
        </thead>
        <tbody>
          {values.map((each) => (
            <tr key={each.id}>
              {hasSubjects && <td>{each.subject || '–'}</td>}
              {hasKeys && <td>{each.key || '–'}</td>}
              <td className="right card-value" title={shown(each.value, card.config)}>
                <ShownValue value={each.value} config={card.config} />
              </td>
              <td className="right dimmed">
                <Ago ms={each.tsMs} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </CardScroller>
  );
}

function positionOf({ values }: LatestOfDevice): { lat: number; lon: number } | null {
  const number = (...names: string[]) => {
    const found = names.map((name) => values[name]?.value).find((value) => typeof value === 'number');
    return typeof found === 'number' ? found : null;
  };
  const [lat, lon] = [number('latitude', 'lat'), number('longitude', 'lon', 'lng')];
  return lat === null || lon === null ? null : { lat, lon };
}

/** Positions of devices relative to each other; the page loads no maps from other servers. */
function MapCard({ data }: { data: CardData }) {
  const places = data.sources
    .flatMap((each) => (each.type === 'telemetry' || each.type === 'attributes' ? each.latest : []))
    .flatMap((each) => {
      const position = positionOf(each);
      return position ? [{ device: each.device, ...position }] : [];
    });
  if (places.length === 0) {
    return (
      <Note>
        <Trans>No positions: the devices have no values latitude and longitude.</Trans>
      </Note>
    );
  }
  const bounds = (values: number[]) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const space = (high - low || 0.01) * 0.15;
    return [low - space, high + space] as const;
  };
  const [south, north] = bounds(places.map(({ lat }) => lat));
  const [west, east] = bounds(places.map(({ lon }) => lon));
  return (
    <svg
      viewBox="0 0 400 260"
      className="card-map"
      role="img"
      aria-label={places.map(({ device }) => device).join(', ')}
    >
      {[0.25, 0.5, 0.75].map((part) => (
        <g key={part} className="map-line">
          <line x1={400 * part} x2={400 * part} y1={0} y2={260} />
          <line x1={0} x2={400} y1={260 * part} y2={260 * part} />
        </g>
      ))}
      {places.map(({ device, lat, lon }) => {
        const x = ((lon - west) / (east - west)) * 400;
        const y = ((north - lat) / (north - south)) * 260;
        // The label of a device on the right is to the left of its point, so that the border does not cut it.
        const isLeft = x > 270;
        return (
          <g key={device}>
            <circle cx={x} cy={y} r={5} className="map-point" />
            <text x={isLeft ? x - 8 : x + 8} y={y + 4} textAnchor={isLeft ? 'end' : 'start'} className="gauge-limit">
              {device}
            </text>
          </g>
        );
      })}
    </svg>
  );
}

/** Sends a command to the device of the card. */
function ControlCard({ card }: { card: Card }) {
  const { t } = useLingui();
  const { source, mayControl } = useDashboardContext();
  const { control = 'button', method = '', min = 0, max = 100, unit } = card.config;
  const [value, setValue] = useState<number>(min);
  const [isOn, setOn] = useState(false);
  const [outcome, setOutcome] = useState<{ isError: boolean; text: string } | null>(null);
  const [isPending, setPending] = useState(false);
  const target = card.sources[0];
  const device = target && 'device' in target ? target.device : undefined;
  const isDisabled = !mayControl || !device || method === '' || isPending;
  const run = async (input?: boolean | number) => {
    if (!device) return;
    setPending(true);
    setOutcome(null);
    try {
      await unwrap(
        api.POST('/api/v1/devices/{id}/commands', {
          params: { path: { id: device } },
          body: { method, params: paramsOf(control, input) } as never,
        }),
      );
      setOutcome({ isError: false, text: t`Sent` });
    } catch (error) {
      setOutcome({ isError: true, text: (error as Error).message });
      if (control === 'switch') setOn((previous) => !previous);
    } finally {
      setPending(false);
    }
  };
  const label = card.title || method;
  return (
    <div className="card-control">
      {control === 'switch' && (
        <Switch
          label={label}
          size="md"
          disabled={isDisabled}
          checked={isOn}
          onChange={(event) => {
            setOn(event.currentTarget.checked);
            void run(event.currentTarget.checked);
          }}
        />
      )}
      {control === 'slider' && (
        <Slider
          thumbLabel={label}
          disabled={isDisabled}
          min={min}
          max={max}
          value={value}
          onChange={setValue}
          onChangeEnd={(next) => void run(next)}
          label={(shownValue) => `${shownValue} ${unit ?? ''}`}
        />
      )}
      {control === 'number' && (
        <div className="row">
          <NumberInput
            aria-label={label}
            className="grow"
            disabled={isDisabled}
            value={value}
            min={min}
            max={max}
            onChange={(next) => setValue(Number(next) || 0)}
          />
          <Button disabled={isDisabled} onClick={() => void run(value)}>
            <Trans>Send</Trans>
          </Button>
        </div>
      )}
      {control === 'button' && (
        <Button size="sm" disabled={isDisabled} loading={isPending} onClick={() => void run()}>
          {label || t`Send`}
        </Button>
      )}
      <Text size="xs" role="status" c={outcome?.isError ? 'var(--tg-critical)' : 'dimmed'}>
        {outcome?.text ??
          (source.isShared ? (
            <Trans>Controls work only for people who are logged in.</Trans>
          ) : !mayControl ? (
            <Trans>Commands are sent with the role operator.</Trans>
          ) : !device || method === '' ? (
            <Trans>Edit the card to choose a device and the method of the command.</Trans>
          ) : control === 'slider' ? (
            `${device} · ${shown(value, card.config)}`
          ) : (
            device
          ))}
      </Text>
    </div>
  );
}

interface LoggedMessage {
  id: number;
  at_ms: number;
  topic: string;
  payload: string;
}

const maxLogged = 50;
/** Long enough to publish a message elsewhere and come back. */
const logHiddenMs = 60_000;

function LiveMessages({ filter }: { filter: string }) {
  const { t } = useLingui();
  const { source } = useDashboardContext();
  const [messages, setMessages] = useState<LoggedMessage[]>([]);
  const isOpen = filter !== '' && !source.isShared;
  useEffect(() => {
    if (!isOpen) return;
    let id = 0;
    setMessages([]);
    return openStream({
      path: withQuery('/api/v1/messages/live', { topic_filter: filter, max_per_s: 10, payload_bytes: 512 }),
      hiddenMs: logHiddenMs,
      onEvent: ({ type, data }) => {
        if (type !== 'message') return;
        const message = data as Omit<LoggedMessage, 'id'> & { direction: string };
        if (message.direction !== 'published') return;
        id += 1;
        const next = { ...message, id };
        setMessages((previous) => [next, ...previous.slice(0, maxLogged - 1)]);
      },
    });
  }, [filter, isOpen]);
  if (source.isShared) {
    return (
      <Note>
        <Trans>Messages are shown only to people who are logged in.</Trans>
      </Note>
    );
  }
  if (filter === '') {
    return (
      <Note>
        <Trans>Edit the card to choose a topic filter.</Trans>
      </Note>
    );
  }
  return (
    <CardScroller label={t`Messages of ${filter}`}>
      {messages.length === 0 && (
        <Note>
          <Trans>No message yet</Trans>
        </Note>
      )}
      {messages.map((message) => (
        <div key={message.id} className="card-message">
          <LiveTime ms={message.at_ms} />
          <span className="mono state-good">{message.topic}</span>
          <span className="mono">{message.payload}</span>
        </div>
      ))}
    </CardScroller>
  );
}
