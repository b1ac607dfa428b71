import { Button } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconSettings } from '@tabler/icons-react';
import { useState } from 'react';
import { useLocation, useParams } from 'wouter';
import { ApiError, type Schemas } from '../../api/client';
import { objectPath, useList, useObject } from '../../api/objects';
import { mayInNamespace, useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { ObjectEditor } from '../../ui/object-editor';
import { Page } from '../../ui/page';
import { PageTabs } from '../../ui/page-tabs';
import { PendingPage } from '../../ui/pending-page';
import { ShowCall } from '../../ui/show-call';
import { EmptyState } from '../../ui/states';
import { deviceHref, useDeviceColumns } from '../devices/device-columns';
import { GroupCommand } from './group-command';
import { criteriaOf, groupsPath, useGroupKind, type Group } from './group-kind';
import { GroupValues } from './group-values';
import { useGroupCounts } from './groups-page';

export default function GroupPage() {
  const { t } = useLingui();
  const caller = useCaller();
  const [, navigate] = useLocation();
  const { id: coded = '' } = useParams<{ id: string }>();
  const id = decodeURIComponent(coded);
  const [isEditing, setEditing] = useState(false);
  const kind = useGroupKind();
  const group = useObject<Group>(groupsPath, id);
  const counts = useGroupCounts(id);
  if (!group.data) {
    return (
      <PendingPage
        title={id}
        query={group}
        missing={<EmptyState title={<Trans>There is no group with this id</Trans>} />}
      />
    );
  }
  const data = group.data;
  const mayChange = mayInNamespace(caller, 'operator', data.namespace);
  return (
    <Page
      title={data.name || data.id}
      aside={
        counts.data && (
          <span className="dimmed">
            <Trans>
              {formatNumber(counts.data.online)} of {formatNumber(counts.data.devices)} online
            </Trans>
          </span>
        )
      }
      description={[criteriaOf(data), data.description].filter(Boolean).join(' · ')}
      actions={
        <>
          <ShowCall method="GET" path={objectPath(groupsPath, id)} ctl={`device-groups show ${id}`} />
          <Button variant="default" leftSection={<IconSettings size={14} />} onClick={() => setEditing(true)}>
            <Trans>Settings</Trans>
          </Button>
        </>
      }
    >
      <PageTabs
        tabs={[
          { id: 'members', label: <Trans>Members</Trans>, content: <Members id={id} /> },
          { id: 'values', label: <Trans>Values</Trans>, content: <GroupValues id={id} /> },
          {
            id: 'command',
            label: <Trans>Command</Trans>,
            content: <GroupCommand id={id} members={counts.data?.devices} mayChange={mayChange} />,
          },
        ]}
      />
      {isEditing && (
        <ObjectEditor
          kind={kind}
          object={data}
          title={t`Settings of ${id}`}
          mayChange={mayChange}
          onClose={() => {
            setEditing(false);
            void group.refetch().then(({ error }) => {
              if (error instanceof ApiError && error.status === 404) navigate('/groups');
            });
          }}
        />
      )}
    </Page>
  );
}

function Members({ id }: { id: string }) {
  const { t } = useLingui();
  const list = useList<Schemas['Device']>(
    `${objectPath(groupsPath, id)}/devices`,
    {},
    { every: 10_000, pageSize: 200 },
  );
  const shared = useDeviceColumns();
  const columns: Column<Schemas['Device']>[] = [shared.name, shared.id, shared.state, shared.product, shared.seen];
  return (
    <DataTable
      name="group-members"
      label={t`Members`}
      columns={columns}
      rowKey={(device) => device.id}
      rowHref={deviceHref}
      {...pagesOf(list)}
      empty={
        <EmptyState title={<Trans>No device matches</Trans>}>
          <Trans>Change the criteria of the group in its settings, or add devices.</Trans>
        </EmptyState>
      }
    />
  );
}
