import { Spotlight, spotlight } from '@mantine/spotlight';
import { useDebouncedValue } from '@mantine/hooks';
import { useLingui } from '@lingui/react/macro';
import { msg } from '@lingui/core/macro';
import type { MessageDescriptor } from '@lingui/core';
import {
  IconActivity,
  IconArrowRight,
  IconDatabaseExport,
  IconDevices2,
  IconFilterCode,
  IconLayoutDashboard,
  IconPackage,
  IconPlugConnected,
  IconSearch,
  IconStack2,
  IconTopologyStarRing,
  type Icon,
} from '@tabler/icons-react';
import { useState } from 'react';
import { useLocation } from 'wouter';
import { api, unwrap, useRead, type Schemas } from './api/client';
import { send, withQuery } from './api/objects';
import { mayOnNode, useCaller } from './api/session';
import { filterProblem } from './pages/live/topics';
import { navigationFor } from './navigation';
import { newRulePath } from './new-paths';
import { paletteActions } from './palette-actions';

export const openPalette = () => spotlight.open();

const maxFound = 6;
const topicsRefreshMs = 1_000;

/** Configuration objects that have a page, by their part of the API's paths. */
const kinds: { path: string; href: string; label: MessageDescriptor; icon: Icon }[] = [
  { path: 'rules', href: '/rules', label: msg`Rules`, icon: IconFilterCode },
  { path: 'sinks', href: '/connectors/sinks', label: msg`Sinks`, icon: IconDatabaseExport },
  { path: 'dashboards', href: '/dashboards', label: msg`Dashboards`, icon: IconLayoutDashboard },
  { path: 'products', href: '/products', label: msg`Products`, icon: IconPackage },
  { path: 'device-groups', href: '/groups', label: msg`Groups`, icon: IconStack2 },
  { path: 'endpoints', href: '/relay', label: msg`Endpoints`, icon: IconTopologyStarRing },
];

/** What the page of a new rule begins with: the topic, and its last message if that is a whole text. */
function ruleSample({ topic, last }: Schemas['PublishedTopic']): { topic: string; payload?: string } {
  return { topic, ...(last?.payload_encoding === 'text' && !last.is_truncated ? { payload: last.payload } : {}) };
}

/** Ctrl-K: pages, actions, and clients, devices, topics and other objects by a part of their name. */
export function CommandPalette() {
  const { t, i18n } = useLingui();
  const caller = useCaller();
  const [, navigate] = useLocation();
  const [query, setQuery] = useState('');
  const [wanted] = useDebouncedValue(query.trim(), 150);
  const isSearching = wanted.length >= 2;
  const clients = useRead(
    ['palette', 'clients', wanted],
    (signal) =>
      unwrap(
        api.GET('/api/v1/sessions', { params: { query: { client_id_contains: wanted, limit: maxFound } }, signal }),
      ),
    { enabled: isSearching && caller.role !== null, keep: true },
  );
  const devices = useRead(
    ['palette', 'devices', wanted],
    (signal) => unwrap(api.GET('/api/v1/devices', { params: { query: { text: wanted, limit: maxFound } }, signal })),
    { enabled: isSearching, keep: true },
  );
  const objects = useRead(
    ['palette', 'objects', wanted],
    (signal) =>
      Promise.all(
        kinds.map(async ({ path }) => {
          const list = `/api/v1/${path}`;
          const query = withQuery(list, { id_contains: wanted, limit: maxFound });
          // Callers of a namespace may not see some kinds.
          return send<{ data: Record<string, unknown>[] }>('GET', query, { signal }).catch(() => ({ data: [] }));
        }),
      ),
    { enabled: isSearching, keep: true },
  );
  // The node records topics only while somebody asks for them: those that are published now appear with the next answer.
  const topics = useRead(
    ['palette', 'topics', wanted],
    (signal) =>
      unwrap(api.GET('/api/v1/published-topics', { params: { query: { contains: wanted, limit: maxFound } }, signal })),
    { enabled: isSearching && caller.role !== null, keep: true, every: topicsRefreshMs },
  );
  const typed = query.trim().toLowerCase();
  const actions = paletteActions
    .filter(({ isPermitted }) => isPermitted(caller))
    .map(({ label, href }) => ({
      id: `action ${href}`,
      label: i18n._(label),
      leftSection: <IconArrowRight size={18} stroke={1.7} />,
      onClick: () => navigate(href),
    }))
    .filter(({ label }) => typed === '' || label.toLowerCase().includes(typed));
  const watch = (filter: string) => navigate(`/live?${new URLSearchParams({ filter }).toString()}`);
  const pages = navigationFor(caller)
    .flatMap((group) => group.entries)
    .map(({ path, label, icon: Icon }) => ({
      id: path,
      label: i18n._(label),
      leftSection: <Icon size={18} stroke={1.7} />,
      onClick: () => navigate(path),
    }))
    .filter((entry) => entry.label.toLowerCase().includes(typed));
  const found = isSearching
    ? [
        {
          group: t`Clients`,
          actions: (clients.data?.data ?? []).map((client) => ({
            id: `client ${client.client_id}`,
            label: client.client_id,
            description: client.connected ? t`connected` : t`not connected`,
            leftSection: <IconPlugConnected size={18} stroke={1.7} />,
            onClick: () => navigate(`/clients/${encodeURIComponent(client.client_id)}`),
          })),
        },
        {
          group: t`Devices`,
          actions: (devices.data?.data ?? []).map((device) => ({
            id: `device ${device.id}`,
            label: device.name || device.id,
            description: device.id,
            leftSection: <IconDevices2 size={18} stroke={1.7} />,
            onClick: () => navigate(`/devices/${encodeURIComponent(device.id)}`),
          })),
        },
        {
          group: t`Topics`,
          actions:
            caller.role === null
              ? []
              : [
                  ...(topics.data?.data ?? []).map(({ topic, last }) => ({
                    id: `topic ${topic}`,
                    label: topic,
                    description: last?.payload,
                    leftSection: <IconActivity size={18} stroke={1.7} />,
                    onClick: () => watch(topic),
                  })),
                  ...(topics.data?.data ?? []).slice(0, mayOnNode(caller, 'operator') ? 1 : 0).map((node) => ({
                    id: `rule ${node.topic}`,
                    label: t`Write a rule for ${node.topic}`,
                    leftSection: <IconFilterCode size={18} stroke={1.7} />,
                    onClick: () => navigate(newRulePath, { state: ruleSample(node) }),
                  })),
                  ...(query.includes('/') && query.length < 400 && filterProblem(query.trim()) === null
                    ? [
                        {
                          id: `filter ${wanted}`,
                          label: t`Show the messages of ${query.trim()}`,
                          leftSection: <IconActivity size={18} stroke={1.7} />,
                          onClick: () => watch(query.trim()),
                        },
                      ]
                    : []),
                ],
        },
        ...kinds.map(({ label, href, icon: Icon }, index) => ({
          group: i18n._(label),
          actions: (objects.data?.[index]?.data ?? []).map((object) => {
            const id = String(object.id ?? object.name);
            const title = String(object.name || id);
            return {
              id: `${href} ${id}`,
              label: title,
              description: title === id ? undefined : id,
              leftSection: <Icon size={18} stroke={1.7} />,
              onClick: () => navigate(`${href}/${encodeURIComponent(id)}`),
            };
          }),
        })),
      ].filter((group) => group.actions.length > 0)
    : [];
  return (
    <Spotlight
      actions={[{ group: t`Pages`, actions: pages }, ...found, { group: t`Actions`, actions }].filter(
        (group) => group.actions.length > 0,
      )}
      query={query}
      onQueryChange={setQuery}
      filter={(_, actions) => actions}
      shortcut={['mod + K', '/']}
      nothingFound={t`Nothing found`}
      highlightQuery
      scrollable
      maxHeight={420}
      searchProps={{
        leftSection: <IconSearch size={18} stroke={1.7} />,
        placeholder: t`Find a page, client, device, topic, rule or action`,
        'aria-label': t`Find a page, client, device, topic, rule or action`,
      }}
    />
  );
}
