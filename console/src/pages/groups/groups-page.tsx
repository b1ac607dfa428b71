import { Trans, useLingui } from '@lingui/react/macro';
import { useLocation } from 'wouter';
import { useRead, type Schemas } from '../../api/client';
import { objectPath, send } from '../../api/objects';
import { mayInNamespace, useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import type { Column } from '../../ui/data-table';
import { ObjectList } from '../../ui/object-list';
import { Page } from '../../ui/page';
import { Ago } from '../../ui/time';
import { criteriaOf, groupHref, groupsPath, useGroupKind, type Group } from './group-kind';

export default function GroupsPage() {
  const { t } = useLingui();
  const caller = useCaller();
  const [, navigate] = useLocation();
  const kind = useGroupKind();
  const columns: Column<Group>[] = [
    { id: 'name', header: t`Name`, sort: (row) => row.name, cell: (row) => row.name || '–' },
    {
      id: 'criteria',
      header: t`Devices that match`,
      cell: (row) => <span className="mono">{criteriaOf(row) || '–'}</span>,
    },
    { id: 'count', header: t`Online`, align: 'right', cell: (row) => <GroupCount id={row.id} /> },
    { id: 'description', header: t`Description`, cell: (row) => row.description || '–' },
    {
      id: 'created',
      header: t`Created`,
      sort: (row) => row.created_at_ms,
      cell: (row) => <Ago ms={row.created_at_ms} />,
      isHidden: true,
    },
  ];
  return (
    <Page
      title={t`Groups`}
      description={<Trans>A group selects devices: to see their values together, and to command them at once.</Trans>}
    >
      <ObjectList<Group>
        kind={kind}
        label={t`Groups`}
        columns={columns}
        mayChange={mayInNamespace(caller, 'operator')}
        isNamespaced
        rowHref={(row) => groupHref(row.id)}
        onCreated={(object) => navigate(groupHref(String(object.id)))}
        empty={{
          title: <Trans>No groups yet</Trans>,
          text: <Trans>A group selects devices by product, tags or id, such as all pumps of a hall.</Trans>,
        }}
      />
    </Page>
  );
}

export function useGroupCounts(id: string) {
  return useRead(
    [groupsPath, 'counts', id],
    (signal) => send<Schemas['GroupCounts']>('GET', `${objectPath(groupsPath, id)}/counts`, { signal }),
    { every: 10_000 },
  );
}

/** Only rows that are visible are counted. */
function GroupCount({ id }: { id: string }) {
  const counts = useGroupCounts(id);
  if (!counts.data) return <span className="dimmed">–</span>;
  const { online, devices, is_truncated } = counts.data;
  return (
    <>
      {formatNumber(online)} / {formatNumber(devices)}
      {is_truncated && '+'}
    </>
  );
}
